// Two operators for ONNX Runtime, compiled on the user's machine (`__init__.py`).
//
// RowProduct, with AVX-512 VNNI: rows times an int8 matrix, for which ONNX Runtime needs 8 to 19 nodes and longer
// (`products.h`).
// Snake: x + sin²(alpha · x) / alpha, five nodes of ONNX Runtime's, of which Sin runs on one thread.
//
// ONNX Runtime's wheel contains no header, so its C interface is declared here: a table of functions, by index, and a
// table of an operator's functions. Both only ever grow at their ends.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <new>
#include <stdexcept>
#include <utility>
#include <vector>

#ifdef HAS_RowProduct
#include "products.h"
#endif

namespace {

constexpr uint32_t API_VERSION = 18, OPERATOR_VERSION = 16;
enum Function {
    CreateStatus = 0, CreateCustomOpDomain = 26, CustomOpDomain_Add = 27, AddCustomOpDomain = 28,
    GetTensorMutableData = 51, GetDimensionsCount = 61, GetDimensions = 62, GetTensorTypeAndShape = 65,
    KernelInfoGetAttribute_int64 = 86, KernelContext_GetInput = 90, KernelContext_GetOutput = 91,
    ReleaseTensorTypeAndShapeInfo = 99, KernelContext_ParallelFor = 274,
};
enum ErrorCode { FAIL = 1 };
enum ElementType { FLOAT = 1, INT8 = 3, INT32 = 6 };
using Table = void* const*;
Table api;

// Calls a function that returns a status. The calls used here fail for lack of memory only.
template <class... Given>
void call(Function function, Given... given) {
    if (reinterpret_cast<void* (*)(Given...)>(api[function])(given...) != nullptr) throw std::bad_alloc();
}

// A damaged package may have any shapes.
void require(bool fits) {
    if (!fits) throw std::invalid_argument("shapes that do not fit each other");
}

struct Tensor {
    std::vector<int64_t> shape;
    void* data;

    const float* floats() const { return static_cast<const float*>(data); }
    size_t size(size_t first, size_t last) const {
        size_t product = 1;
        for (size_t axis = first; axis < last; axis++) product *= shape[axis];
        return product;
    }
};

Tensor input(void* context, size_t index) {
    void *value, *info, *data;
    size_t rank;
    call(KernelContext_GetInput, context, index, &value);
    call(GetTensorTypeAndShape, value, &info);
    call(GetDimensionsCount, info, &rank);
    require(rank > 0);
    std::vector<int64_t> shape(rank);
    call(GetDimensions, info, shape.data(), rank);
    reinterpret_cast<void (*)(void*)>(api[ReleaseTensorTypeAndShapeInfo])(info);
    call(GetTensorMutableData, value, &data);
    return {shape, data};
}

float* output(void* context, const std::vector<int64_t>& shape) {
    void *value, *data;
    call(KernelContext_GetOutput, context, size_t{0}, shape.data(), shape.size(), &value);
    call(GetTensorMutableData, value, &data);
    return static_cast<float*>(data);
}

// Runs task(0) to task(count - 1) on the session's threads.
template <class Task>
void in_parallel(void* context, size_t count, const Task& task) {
    void (*run)(void*, size_t) = [](void* given, size_t index) { (*static_cast<const Task*>(given))(index); };
    call(KernelContext_ParallelFor, context, run, count, size_t{0}, const_cast<void*>(static_cast<const void*>(&task)));
}

// ---- RowProduct ----------------------------------------------------------------------------------------------------

#ifdef HAS_RowProduct
constexpr size_t BLOCK = 96;    // rows at once, whose sums are kept on the stack
constexpr size_t FEW_ROWS = 4;  // below, reading the weight dominates, so a second plane costs nothing
constexpr float STEP = 1.0f / 127, FINE_STEP = 1.0f / 254, MIN_PEAK = 1e-30f;

// Multiples of a step as bytes around 128.
__m512i rounded(__m512 values, float step) {
    const __m512i steps = _mm512_cvtps_epi32(_mm512_div_ps(values, _mm512_set1_ps(step)));
    const __m512i bytes = _mm512_add_epi32(steps, _mm512_set1_epi32(128));
    return _mm512_min_epi32(_mm512_max_epi32(bytes, _mm512_setzero_si512()), _mm512_set1_epi32(255));
}

void store(uint8_t* into, __m512i bytes) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(into), _mm512_cvtepi32_epi8(bytes));
}

// Quantises x / divisor, and, unless `fine` is null, what the rounding leaves.
void quantize(const float* x, size_t length, float divisor, float step, uint8_t* coarse, uint8_t* fine) {
    for (size_t i = 0; i < length; i += 16) {
        const __m512 scaled = _mm512_div_ps(_mm512_loadu_ps(x + i), _mm512_set1_ps(divisor));
        const __m512i bytes = rounded(scaled, step);
        store(coarse + i, bytes);
        if (fine == nullptr) continue;
        const __m512 whole = _mm512_cvtepi32_ps(_mm512_sub_epi32(bytes, _mm512_set1_epi32(128)));
        store(fine + i, rounded(_mm512_sub_ps(scaled, whole), FINE_STEP));
    }
}

float peak_of(const float* x, size_t length) {
    __m512 peak = _mm512_set1_ps(MIN_PEAK);
    for (size_t i = 0; i < length; i += 16) peak = _mm512_max_ps(peak, _mm512_abs_ps(_mm512_loadu_ps(x + i)));
    return _mm512_reduce_max_ps(peak);
}

// x (..., rows, length), weight (panels, length / 4, COLUMNS, 4), scales (columns), offsets (columns, 1): 128 times the
// weight's sums -> (..., rows, columns). planes: 1, 2, or 0 for two with few rows, as in integer_products.py, whose
// rounding this repeats.
void row_product(void* kernel, void* context) {
    const Tensor x = input(context, 0), weight = input(context, 1);
    const Tensor scale = input(context, 2), offset = input(context, 3);
    const size_t asked = *static_cast<int64_t*>(kernel), length = x.shape.back(), columns = scale.shape[0];
    const size_t count = x.size(0, x.shape.size() - 1);
    const size_t planes = asked ? asked : count < FEW_ROWS ? 2 : 1, stride = length + PADDING;
    require(length % 16 == 0 && weight.size(0, weight.shape.size()) == length * columns);
    require(columns % COLUMNS == 0 && offset.size(0, offset.shape.size()) == columns);
    std::vector<int64_t> shape = x.shape;
    shape.back() = columns;
    float* result = output(context, shape);
    thread_local std::vector<uint8_t> bytes;
    thread_local std::vector<float> units;
    bytes.resize((count * planes + TILE - 1) * stride);
    units.resize(count);
    uint8_t* rows = bytes.data();
    float* unit = units.data();
    const float step = asked == 1 ? STEP : 1;

    const auto quantize_row = [&](size_t row) {
        const float* values = x.floats() + row * length;
        const float peak = peak_of(values, length);
        unit[row] = asked == 1 ? peak : peak * STEP;
        uint8_t* into = rows + row * planes * stride;
        quantize(values, length, unit[row], step, into, planes == 2 ? into + stride : nullptr);
    };
    if (count < FEW_ROWS)
        for (size_t row = 0; row < count; row++) quantize_row(row);
    else
        in_parallel(context, count, quantize_row);

    in_parallel(context, columns / COLUMNS, [&](size_t panel) {
        alignas(64) int32_t sums[BLOCK * COLUMNS];
        const int8_t* weights = static_cast<int8_t*>(weight.data) + panel * COLUMNS * length;
        for (size_t from = 0; from < count; from += BLOCK / planes) {
            const size_t some = std::min(BLOCK / planes, count - from);
            multiply(rows + from * planes * stride, some * planes, stride, length, weights, sums);
            for (size_t row = 0; row < some; row++)
                for (size_t column = panel * COLUMNS, i = 0; i < COLUMNS; i += 16, column += 16) {
                    const __m512 scales = _mm512_mul_ps(_mm512_set1_ps(step), _mm512_loadu_ps(scale.floats() + column));
                    const __m512i offsets = _mm512_loadu_si512(static_cast<int32_t*>(offset.data) + column);
                    const auto product = [&](size_t plane) {
                        const __m512i sum = _mm512_load_si512(sums + (row * planes + plane) * COLUMNS + i);
                        return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(sum, offsets)), scales);
                    };
                    const float coarse = unit[from + row], fine = coarse * FINE_STEP;
                    __m512 value = _mm512_mul_ps(_mm512_set1_ps(coarse), product(0));
                    if (planes == 2) value = _mm512_add_ps(value, _mm512_mul_ps(_mm512_set1_ps(fine), product(1)));
                    _mm512_storeu_ps(result + (from + row) * columns + column, value);
                }
        }
    });
}

#endif
// ---- Snake ---------------------------------------------------------------------------------------------------------

// x (..., channels, length), alpha and 1 / alpha with an element per channel.
void snake(void*, void* context) {
    const Tensor x = input(context, 0), alpha = input(context, 1), inverse = input(context, 2);
    require(x.shape.size() > 1);
    const size_t length = x.shape.back(), channels = x.shape[x.shape.size() - 2];
    require(alpha.size(0, alpha.shape.size()) == channels && inverse.size(0, inverse.shape.size()) == channels);
    const size_t rows = x.size(0, x.shape.size() - 1), parts = std::min<size_t>(rows, 16);
    float* result = output(context, x.shape);
    in_parallel(context, parts, [&](size_t part) {
        for (size_t row = rows * part / parts; row < rows * (part + 1) / parts; row++) {
            const float a = alpha.floats()[row % channels], b = inverse.floats()[row % channels];
            const float* from = x.floats() + row * length;
            float* into = result + row * length;
            for (size_t i = 0; i < length; i++) {
                const float angle = a * from[i];
                // The angle minus the nearest multiple of pi, in float: its error, divided by alpha, is less than the
                // rounding of x. Then an odd polynomial for sin on -pi/2 to pi/2, whose error is below 5e-9.
                const float turns = std::rint(angle * 0.318309886f);
                const float r = std::fma(turns, -3.14159274f, angle), t = r * r;
                const float sine =
                    r + r * t * (-0.166666567f + t * (0.00833301712f + t * (-0.000198066133f + t * 2.60005118e-6f)));
                into[i] = from[i] + b * (sine * sine);
            }
        }
    });
}

// ---- What ONNX Runtime asks for ------------------------------------------------------------------------------------

struct Operator {
    uint32_t version;
    void* (*create)(const Operator*, Table, const void* info);
    const char* (*name)(const Operator*);
    const char* (*provider)(const Operator*);
    int (*input_type)(const Operator*, size_t);
    size_t (*inputs)(const Operator*);
    int (*output_type)(const Operator*, size_t);
    size_t (*outputs)(const Operator*);
    void (*compute_without_status)(void*, void*);
    void (*destroy)(void* kernel);
    int (*input_is_optional)(const Operator*, size_t);
    int (*output_is_optional)(const Operator*, size_t);
    int (*input_memory)(const Operator*, size_t);
    int (*of_variadic[4])(const Operator*);
    void* (*create_with_status)(const Operator*, Table, const void*, void**);
    void* (*compute)(void* kernel, void* context);
    const char* own_name;
    std::vector<int> types;
};

// Runs a kernel. An exception becomes the session's error, as it must not leave this library.
template <void (*kernel)(void*, void*)>
void* compute(void* state, void* context) {
    try {
        kernel(state, context);
        return nullptr;
    } catch (const std::exception& error) {
        return reinterpret_cast<void* (*)(ErrorCode, const char*)>(api[CreateStatus])(FAIL, error.what());
    }
}

template <void (*kernel)(void*, void*)>
Operator made(const char* name, std::vector<int> types) {
    return {OPERATOR_VERSION,
            [](const Operator*, Table, const void* info) -> void* {
                auto* planes = new int64_t(0);
                if (kernel != snake) call(KernelInfoGetAttribute_int64, info, "planes", planes);
                return planes;
            },
            [](const Operator* self) { return self->own_name; },
            [](const Operator*) -> const char* { return nullptr; },
            [](const Operator* self, size_t index) { return self->types[index]; },
            [](const Operator* self) { return self->types.size(); },
            [](const Operator*, size_t) -> int { return FLOAT; },
            [](const Operator*) -> size_t { return 1; },
            nullptr,
            [](void* state) { delete static_cast<int64_t*>(state); },
            [](const Operator*, size_t) { return 0; },
            [](const Operator*, size_t) { return 0; },
            [](const Operator*, size_t) { return 0; },
            {},
            nullptr,
            compute<kernel>,
            name,
            std::move(types)};
}

}  // namespace

extern "C" void* RegisterCustomOps(void* options, Table base) {
    static const Operator operators[] = {
#ifdef HAS_RowProduct
        made<row_product>("RowProduct", {FLOAT, INT8, FLOAT, INT32}),
#endif
        made<snake>("Snake", {FLOAT, FLOAT, FLOAT})};
    // For all sessions, and never released, as sessions need it to their end.
    static void* const domain = [&] {
        api = reinterpret_cast<Table (*)(uint32_t)>(base[0])(API_VERSION);
        void* created;
        call(CreateCustomOpDomain, "voxcpm", &created);
        for (const Operator& each : operators) call(CustomOpDomain_Add, created, &each);
        return created;
    }();
    call(AddCustomOpDomain, options, domain);
    return nullptr;
}
