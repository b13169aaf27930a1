import Foundation

#if canImport(FoundationNetworking)
import FoundationNetworking
#endif

/// A published bundle, downloaded from a hub file by file: only what one precision needs, each file checked against the
/// manifest's digest.
///
/// Files are written to a folder that ends in `.partial`, which is renamed when everything in it is right: a folder
/// without that end is whole. An interrupted download continues where it stopped.
public struct HubDownload: Sendable {
    /// Such as "openbmb/voxcpm-1.5-coreml".
    public let repository: String
    /// A branch, tag or commit. A branch is resolved to its commit first, so that all files are of one commit.
    public let revision: String
    /// nil takes the smallest precision of the bundle.
    public let precision: Manifest.Precision?
    /// The folder in which the bundle's folder is made.
    public let folder: URL
    private let endpoint: URL
    private let session: URLSession

    private static let blockBytes = 8 << 20
    private static let attempts = 4

    public init(
        _ repository: String, revision: String = "main", precision: Manifest.Precision? = nil, into folder: URL,
        endpoint: URL? = nil, session: URLSession = .shared
    ) throws {
        let parts = repository.split(separator: "/", omittingEmptySubsequences: false)
        let allowed = CharacterSet(charactersIn: "-._").union(.alphanumerics)
        guard parts.count == 2, parts.allSatisfy({ !$0.isEmpty && $0 != "." && $0 != ".." }),
            parts.allSatisfy({ $0.unicodeScalars.allSatisfy { $0.isASCII && allowed.contains($0) } })
        else { throw VoxCPMError.argument(name: "repository", problem: "expected organisation/name, got \(repository)") }
        self.repository = repository
        self.revision = revision
        self.precision = precision
        self.folder = folder
        guard let endpoint = endpoint ?? URL(string: "https://huggingface.co") else {
            throw VoxCPMError.argument(name: "endpoint", problem: "expected a URL")
        }
        self.endpoint = endpoint
        self.session = session
    }

    /// Download what is missing, and return the bundle's folder; one that is there already costs no request.
    ///
    /// - Parameter progress: called with the share of all bytes, from 0 to 1, that is there.
    public func callAsFunction(_ progress: @Sendable (Double) -> Void = { _ in }) async throws -> URL {
        if let commit = isCommit ? revision : nil, let known = finished(commit) { return known }
        let commit = try await self.commit()
        if let known = finished(commit) { return known }
        let partial = url(commit).appendingPathExtension("partial")
        try storing(partial) { try FileManager.default.createDirectory(at: $0, withIntermediateDirectories: true) }
        for name in ["manifest.json", "manifest.sha256"] {
            let file = partial.appendingPathComponent(name)
            let (data, status) = try await fetch(name, at: commit, headers: [:])
            // Bundles of earlier releases have no digest of the manifest.
            guard status == 200 || name != "manifest.json" else { throw failure(name, status) }
            if status == 200 { try storing(file) { try data.write(to: $0, options: .atomic) } }
        }
        let document = try Data(contentsOf: partial.appendingPathComponent("manifest.json"))
        let manifest = try Manifest(json: document)
        let chosen = try manifest.chosen(precision, of: manifest.precisions)
        let files = manifest.files(of: chosen).sorted { $0.key < $1.key }
        let total = max(1, files.reduce(0) { $0 + $1.value.bytes })
        var done = 0
        for (path, record) in files {
            try await download(path, record, at: commit, into: partial) { bytes in
                progress(Double(done + bytes) / Double(total))
            }
            done += record.bytes
        }
        let whole = url(commit)
        try storing(whole) { try FileManager.default.moveItem(at: partial, to: $0) }
        return whole
    }

    private var isCommit: Bool { revision.count == 40 && revision.allSatisfy(\.isHexDigit) }

    private func url(_ commit: String) -> URL {
        let name = repository.replacingOccurrences(of: "/", with: "--")
        return folder.appendingPathComponent("\(name)-\(commit.prefix(12))-\(precision?.rawValue ?? "default")")
    }

    private func finished(_ commit: String) -> URL? {
        let whole = url(commit)
        return FileManager.default.fileExists(atPath: whole.path) ? whole : nil
    }

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

    /// One file of the bundle: `path`, resumed from what `path.part` has.
    private func download(
        _ path: String, _ record: Manifest.FileRecord, at commit: String, into partial: URL,
        _ progress: (Int) -> Void
    ) async throws {
        let file = partial.appendingPathComponent(path), part = file.appendingPathExtension("part")
        let files = FileManager.default
        if size(file) == record.bytes { return progress(record.bytes) }
        try storing(file) {
            try files.createDirectory(at: $0.deletingLastPathComponent(), withIntermediateDirectories: true)
            if !files.fileExists(atPath: part.path) { try Data().write(to: part) }
        }
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

    private func fetch(_ path: String, at commit: String, headers: [String: String]) async throws -> (Data, Int) {
        try await request(endpoint.appendingPathComponent("\(repository)/resolve/\(commit)/\(path)"), headers: headers)
    }

    /// The answer to a request; one that fails for a passing reason is tried again.
    private func request(_ url: URL, headers: [String: String]) async throws -> (Data, Int) {
        var request = URLRequest(url: url)
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
        .download(file: file, problem: "the hub answered with status \(status)")
    }

    private func storing(_ url: URL, _ write: (URL) throws -> Void) throws {
        do {
            try write(url)
        } catch {
            throw VoxCPMError.storage(path: url.path, problem: reason(error))
        }
    }
}
