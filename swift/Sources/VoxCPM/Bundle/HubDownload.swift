import Foundation

#if canImport(FoundationNetworking)
import FoundationNetworking
#endif

/// A published bundle, downloaded from a hub file by file: only what one precision needs, each file checked against the
/// manifest's digest.
///
/// Files are written to a folder with the suffix `.partial`, which is renamed when it is complete. An interrupted
/// download resumes.
struct HubDownload: Sendable {
    private let repository: String
    private let revision: String
    private let precision: Manifest.Precision?
    private let parent: URL
    private let endpoint: URL
    private let token: String?
    private let inBackground: Bool
    private let session = URLSession.shared

    private static let blockBytes = 8 << 20
    private static let attempts = 4
    /// Files at a time.
    private static let concurrent = 4

    /// - Parameters:
    ///   - precision: nil for the smallest of the bundle.
    ///   - parent: where to create the bundle's folder; nil for the application support folder.
    ///   - inBackground: whether the system downloads whole files instead of blocks.
    ///
    /// Throws `VoxCPMError.argument` for a repository that is not organisation/name.
    init(
        _ repository: String, revision: String, precision: Manifest.Precision?, into parent: URL?, endpoint: URL,
        token: String?, inBackground: Bool
    ) throws {
        let parts = repository.split(separator: "/", omittingEmptySubsequences: false)
        let allowed = CharacterSet(charactersIn: "-._").union(.alphanumerics)
        guard parts.count == 2, parts.allSatisfy({ !$0.isEmpty && $0 != "." && $0 != ".." }),
            parts.allSatisfy({ $0.unicodeScalars.allSatisfy { $0.isASCII && allowed.contains($0) } })
        else {
            throw VoxCPMError.argument(name: "repository", problem: "expected organisation/name, got \(repository)")
        }
        self.repository = repository
        self.revision = revision
        self.precision = precision
        self.parent = parent ?? FileManager.default.urls(for: .applicationSupportDirectory, in: .userDomainMask)[0]
            .appendingPathComponent("voxcpm-bundles")
        self.endpoint = endpoint
        self.token = token
        self.inBackground = inBackground
    }

    /// The folder of the complete bundle, by the requested revision: a branch is not looked up again.
    var folder: URL { folder(revision) }

    private func folder(_ revision: String) -> URL {
        let name = "\(repository)--\(revision)--\(precision?.rawValue ?? "default")"
        return parent.appendingPathComponent(name.replacingOccurrences(of: "/", with: "--"))
    }

    /// Download the missing files; a complete bundle needs no request.
    ///
    /// - Parameter progress: called with the downloaded share of all bytes, from 0 to 1.
    func callAsFunction(_ progress: @escaping @Sendable (Double) -> Void) async throws {
        if FileManager.default.fileExists(atPath: folder.path) { return }
        let commit = try await commit(), partial = folder(commit).appendingPathExtension("partial")
        try storing(partial) { try FileManager.default.createDirectory(at: $0, withIntermediateDirectories: true) }
        keepOutOfBackups()
        for name in ["manifest.json", "manifest.sha256"] {
            let (data, status) = try await fetch(name, at: commit, headers: [:])
            // Whoever edits the manifest deletes its digest.
            guard status == 200 || name != "manifest.json" else { throw failure(name, status) }
            if status == 200 {
                try storing(partial.appendingPathComponent(name)) { try data.write(to: $0, options: .atomic) }
            }
        }
        let manifest = try Manifest(json: Data(contentsOf: partial.appendingPathComponent("manifest.json")))
        let chosen = try manifest.chosen(precision, of: manifest.precisions)
        let files = manifest.files(of: chosen).sorted { $0.key < $1.key }
        if inBackground {
            // All of them before the app is suspended.
            for (path, record) in files {
                let file = partial.appendingPathComponent(path)
                let part = file.appendingPathExtension("part")
                guard ![size(file), size(part)].contains(record.bytes) else { continue }
                try makeFolder(of: file)
                await BackgroundDownloads.shared.begin(request(for: address(path, at: commit)), to: part)
            }
        }
        let total = max(1, files.reduce(0.0) { $0 + Double($1.value.bytes) }), shares = Shares()
        try await withThrowingTaskGroup(of: Void.self) { group in
            for (index, (path, record)) in files.enumerated() {
                if index >= Self.concurrent { try await group.next() }
                group.addTask {
                    try await download(path, record, at: commit, into: partial) { bytes in
                        shares.note(path, bytes) { progress($0 / total) }
                    }
                }
            }
            try await group.waitForAll()
        }
        try storing(folder) { try FileManager.default.moveItem(at: partial, to: $0) }
    }

    /// Apps must not back up files that they can download again.
    private func keepOutOfBackups() {
        #if !os(Linux)
        var values = URLResourceValues(), url = parent
        values.isExcludedFromBackup = true
        try? url.setResourceValues(values)
        #endif
    }

    private var isCommit: Bool { revision.count == 40 && revision.allSatisfy(\.isHexDigit) }

    private func commit() async throws -> String {
        if isCommit { return revision }
        struct Revision: Decodable { let sha: String }
        let path = "api/models/\(repository)/revision/\(revision)"
        let (data, status) = try await request(endpoint.appendingPathComponent(path), headers: [:])
        guard status == 200, let found = try? JSONDecoder().decode(Revision.self, from: data).sha,
            found.count == 40, found.allSatisfy(\.isHexDigit)
        else { throw failure("\(repository) at \(revision)", status) }
        return found
    }

    /// One file of the bundle: `path`, resumed from `path.part`.
    private func download(
        _ path: String, _ record: Manifest.FileRecord, at commit: String, into partial: URL,
        _ progress: @Sendable (Int) -> Void
    ) async throws {
        let file = partial.appendingPathComponent(path), part = file.appendingPathExtension("part")
        let files = FileManager.default
        if size(file) == record.bytes { return progress(record.bytes) }
        try makeFolder(of: file)
        if inBackground { try await waitForWhole(part, progress) }
        try storing(part) { if !files.fileExists(atPath: $0.path) { try Data().write(to: $0) } }
        var have = size(part) ?? 0
        if have > record.bytes { have = 0 }
        while have < record.bytes {
            try Task.checkCancellation()
            let end = min(have + Self.blockBytes, record.bytes)
            let (data, status) = try await fetch(path, at: commit, headers: ["Range": "bytes=\(have)-\(end - 1)"])
            // A server that ignores ranges sends the whole file.
            let isWhole = status == 200 && data.count == record.bytes
            guard isWhole || (status == 206 && data.count == end - have) else { throw failure(path, status) }
            try storing(part) { url in
                let handle = try FileHandle(forWritingTo: url)
                defer { try? handle.close() }
                try handle.truncate(atOffset: UInt64(isWhole ? 0 : have))
                try handle.write(contentsOf: data)
            }
            have = isWhole ? data.count : end
            progress(have)
        }
        guard try SHA256.hex(of: part) == record.sha256 else {
            try? files.removeItem(at: part)
            throw VoxCPMError.download(file: path, problem: "its content differs from the manifest's digest")
        }
        try storing(file) { try files.moveItem(at: part, to: $0) }
    }

    /// Wait for a file that the system was asked to download. What is missing afterwards is downloaded in blocks.
    private func waitForWhole(_ part: URL, _ progress: (Int) -> Void) async throws {
        do {
            try await BackgroundDownloads.shared.wait(for: part, progress)
        } catch let error as VoxCPMError {
            throw error
        } catch {
            try Task.checkCancellation()
        }
    }

    private func makeFolder(of file: URL) throws {
        try storing(file) {
            try FileManager.default.createDirectory(
                at: $0.deletingLastPathComponent(), withIntermediateDirectories: true)
        }
    }

    private func address(_ path: String, at commit: String) -> URL {
        endpoint.appendingPathComponent("\(repository)/resolve/\(commit)/\(path)")
    }

    private func fetch(_ path: String, at commit: String, headers: [String: String]) async throws -> (Data, Int) {
        try await request(address(path, at: commit), headers: headers)
    }

    private func request(for url: URL) -> URLRequest {
        var request = URLRequest(url: url)
        if let token { request.setValue("Bearer \(token)", forHTTPHeaderField: "Authorization") }
        return request
    }

    /// The response to a request, with retries for transient failures.
    private func request(_ url: URL, headers: [String: String]) async throws -> (Data, Int) {
        var request = request(for: url)
        for (name, value) in headers { request.setValue(value, forHTTPHeaderField: name) }
        var delay: UInt64 = 500_000_000
        for attempt in 1...Self.attempts {
            do {
                let (data, response) = try await session.data(for: request)
                let status = (response as? HTTPURLResponse)?.statusCode ?? 0
                if ![429, 500, 502, 503, 504].contains(status) || attempt == Self.attempts { return (data, status) }
            } catch is CancellationError {
                throw CancellationError()
            } catch {
                try Task.checkCancellation()
                if attempt == Self.attempts {
                    throw VoxCPMError.download(file: url.lastPathComponent, problem: reason(error))
                }
            }
            try await Task.sleep(nanoseconds: delay)
            delay *= 3
        }
        throw VoxCPMError.download(file: url.lastPathComponent, problem: "no answer")
    }

    private func size(_ file: URL) -> Int? {
        (try? FileManager.default.attributesOfItem(atPath: file.path))?[.size].flatMap { ($0 as? NSNumber)?.intValue }
    }

    private func failure(_ file: String, _ status: Int) -> VoxCPMError {
        let advice = [401, 403].contains(status) ? "; set Configuration.hubToken to one that may read it" : ""
        return .download(file: file, problem: "the hub answered with status \(status)\(advice)")
    }

    private func storing(_ url: URL, _ write: (URL) throws -> Void) throws {
        do {
            try write(url)
        } catch {
            throw VoxCPMError.storage(path: url.path, problem: reason(error))
        }
    }
}

/// Downloaded bytes of the files that are downloaded at the same time.
///
/// Unchecked: a lock guards all state.
private final class Shares: @unchecked Sendable {
    private let lock = NSLock()
    private var bytes: [String: Int] = [:]

    /// Report the sum in order.
    func note(_ path: String, _ count: Int, _ report: (Double) -> Void) {
        lock.withLock {
            bytes[path] = count
            report(Double(bytes.values.reduce(0, +)))
        }
    }
}
