// Sums of bytes times an int8 matrix, with AVX-512 VNNI or the tiles of AMX.
//
// ONNX Runtime's integer product waits for the weight, then computes. This one fetches the next part of it while it
// computes with the last (TRIALS.md).
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#ifdef __AMX_INT8__
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

constexpr int COLUMNS = 64;     // in a panel of the weight: 4 registers of 16 sums
constexpr int MAX_GROUP = 6;    // rows at once: their 24 sums, 4 of the weight and one of a row are 29 of 32 registers
constexpr int PART = 256;       // elements of a row at once: 16 kB of the weight stay in the first-level cache
constexpr int TILE = 16;        // rows of a tile of AMX, which has 64 bytes a row
constexpr size_t PADDING = 64;  // after a row: with 4096 bytes each, a tile's 16 would share 12 lines of the cache

// Adds `count` elements of GROUP rows times a panel to the sums, and prefetches AHEAD cache lines per four elements.
template <int GROUP, int AHEAD>
void add_products(const uint8_t* rows, size_t stride, int count, const int8_t* panel, int32_t* sums,
                  const int8_t* next) {
    __m512i sum[GROUP][4];
#pragma GCC unroll 8
    for (int row = 0; row < GROUP; row++)
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) sum[row][i] = _mm512_load_si512(sums + row * COLUMNS + i * 16);
    for (int k = 0; k < count; k += 4, panel += 4 * COLUMNS) {
        __m512i weight[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) weight[i] = _mm512_loadu_si512(panel + i * 64);
#pragma GCC unroll 4
        for (int line = 0; line < AHEAD; line++, next += 64)
            _mm_prefetch(reinterpret_cast<const char*>(next), _MM_HINT_T0);
#pragma GCC unroll 8
        for (int row = 0; row < GROUP; row++) {
            const __m512i four = _mm512_set1_epi32(*reinterpret_cast<const int32_t*>(rows + row * stride + k));
#pragma GCC unroll 4
            // The intrinsic makes GCC 12 keep the sums in memory.
            for (int i = 0; i < 4; i++) asm("vpdpbusd %2, %1, %0" : "+v"(sum[row][i]) : "v"(four), "v"(weight[i]));
        }
    }
#pragma GCC unroll 8
    for (int row = 0; row < GROUP; row++)
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) _mm512_store_si512(sums + row * COLUMNS + i * 16, sum[row][i]);
}

using AddProducts = decltype(&add_products<1, 1>);

#ifdef __AMX_INT8__
// Linux lends the tiles to a process that asks.
bool has_tiles() {
    constexpr long REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
    static const bool granted = syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
    return granted;
}

void configure_tiles() {
    alignas(64) static struct {
        uint8_t palette = 1, start = 0, reserved[14] = {};
        uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
        uint8_t rows[16] = {TILE, TILE, TILE, TILE, TILE, TILE, TILE, TILE};
    } shapes;
    asm volatile("" ::: "memory");  // GCC's intrinsics do not say what they read
    _tile_loadconfig(&shapes);
}

void release_tiles() { _tile_release(); }

// As add_products, for TILE rows and a multiple of 64 elements.
template <int AHEAD>
void add_tile_products(const uint8_t* rows, size_t stride, int count, const int8_t* panel, int32_t* sums,
                       const int8_t* next) {
    constexpr size_t FOUR = 4 * COLUMNS;  // bytes of a row of sums, and of four rows of the weight
    const auto prefetch = [&] {
#pragma GCC unroll 16
        for (int line = 0; line < 4 * AHEAD; line++, next += 64)
            _mm_prefetch(reinterpret_cast<const char*>(next), _MM_HINT_T2);
    };
    _tile_loadd(0, sums, FOUR);
    _tile_loadd(1, sums + 16, FOUR);
    _tile_loadd(2, sums + 32, FOUR);
    _tile_loadd(3, sums + 48, FOUR);
    for (int k = 0; k < count; k += 64, panel += 64 * COLUMNS) {
        _tile_loadd(4, rows + k, stride);
        _tile_loadd(5, panel, FOUR);
        _tile_dpbusd(0, 4, 5);
        prefetch();
        _tile_loadd(6, panel + 64, FOUR);
        _tile_dpbusd(1, 4, 6);
        prefetch();
        _tile_loadd(5, panel + 128, FOUR);
        _tile_dpbusd(2, 4, 5);
        prefetch();
        _tile_loadd(6, panel + 192, FOUR);
        _tile_dpbusd(3, 4, 6);
        prefetch();
    }
    _tile_stored(0, sums, FOUR);
    _tile_stored(1, sums + 16, FOUR);
    _tile_stored(2, sums + 32, FOUR);
    _tile_stored(3, sums + 48, FOUR);
}
#else
bool has_tiles() { return false; }
void configure_tiles() {}
void release_tiles() {}
template <int AHEAD>
constexpr AddProducts add_tile_products = nullptr;
#endif

// For 1 to MAX_GROUP rows, and for a tile.
template <int AHEAD>
constexpr AddProducts BY_GROUP[] = {add_products<1, AHEAD>, add_products<2, AHEAD>, add_products<3, AHEAD>,
                                    add_products<4, AHEAD>, add_products<5, AHEAD>, add_products<6, AHEAD>,
                                    add_tile_products<AHEAD>};

// sums (count, COLUMNS) of `count` rows (count, stride) times a panel (length / 4, COLUMNS, 4). With tiles, rows and
// sums continue to a multiple of TILE, with any content.
void multiply(const uint8_t* rows, size_t count, size_t stride, size_t length, const int8_t* panel, int32_t* sums) {
    const bool tiled = count > MAX_GROUP && has_tiles();
    const size_t largest = tiled ? TILE : MAX_GROUP, groups = (count + largest - 1) / largest;
    // The groups of a part share its 4 lines per 4 elements of the next part.
    const size_t share = groups == 1 ? 4 : groups <= 3 ? 2 : 1;
    const AddProducts* by_group = share == 4 ? BY_GROUP<4> : share == 2 ? BY_GROUP<2> : BY_GROUP<1>;
    std::fill(sums, sums + (tiled ? groups * TILE : count) * COLUMNS, 0);
    if (tiled) configure_tiles();
    for (size_t at = 0; at < length; at += PART) {
        const size_t part = std::min<size_t>(PART, length - at), bytes = part * COLUMNS;
        const int8_t* weight = panel + at * COLUMNS;
        for (size_t group = 0, row = 0; group < groups; group++) {
            const size_t size = tiled ? TILE : (count - row + groups - group - 1) / (groups - group);
            const int8_t* next = weight + bytes + std::min(group, 4 / share - 1) * bytes / 4 * share;
            const AddProducts add = by_group[tiled ? MAX_GROUP : size - 1];
            add(rows + row * stride + at, stride, part, weight, sums + row * COLUMNS, next);
            row += size;
        }
    }
    if (tiled) release_tiles();
}

}  // namespace
