import Foundation

#if canImport(FoundationNetworking)
import FoundationNetworking
#endif

/// Whole files that the system downloads, also while the app is suspended. It resumes them itself.
///
/// Linux has no such session: there an ordinary one does the same while the process runs, for the tests.
///
/// Unchecked: everything that changes is read and written under the lock.
final class BackgroundDownloads: NSObject, URLSessionDownloadDelegate, @unchecked Sendable {
    static let shared = BackgroundDownloads()
    static let identifier = "voxcpm-downloads"

    private let lock = NSLock()
    /// By the path that a file goes to: bytes that are there, and how the transfer ended.
    private var transfers: [String: (bytes: Int, end: Result<Void, any Error>?)] = [:]
    private var whenDone: Handler?
    private lazy var session = URLSession(configuration: Self.configuration, delegate: self, delegateQueue: nil)

    /// Unchecked: iOS gives a handler that is not Sendable, to be called on the main thread.
    private struct Handler: @unchecked Sendable { let call: () -> Void }

    private static var configuration: URLSessionConfiguration {
        #if os(Linux)
        .default
        #else
        .background(withIdentifier: identifier)
        #endif
    }

    /// Begin to download a file, unless an earlier process has begun it.
    func begin(_ request: URLRequest, to file: URL) async {
        let path = file.path
        let isKnown = lock.withLock { transfers.updateValue((0, nil), forKey: path).map { $0.end == nil } ?? false }
        let tasks = await withCheckedContinuation { all in session.getAllTasks { all.resume(returning: $0) } }
        guard !isKnown, !tasks.contains(where: { $0.taskDescription == path }) else { return }
        let task = session.downloadTask(with: request)
        task.taskDescription = path
        task.resume()
    }

    /// Wait for a file, if it was begun. Cancelling the wait does not end the transfer.
    func wait(for file: URL, _ progress: (Int) -> Void) async throws {
        while let transfer = lock.withLock({ transfers[file.path] }) {
            if let end = transfer.end { return try end.get() }
            progress(transfer.bytes)
            try await Task.sleep(nanoseconds: 100_000_000)
        }
    }

    /// Call `done` once all of the session's events are delivered.
    func finish(_ done: @escaping () -> Void) {
        let handler = Handler(call: done)
        lock.withLock { whenDone = handler }
        _ = session
    }

    func urlSession(
        _ session: URLSession, downloadTask: URLSessionDownloadTask, didWriteData bytesWritten: Int64,
        totalBytesWritten: Int64, totalBytesExpectedToWrite: Int64
    ) {
        note(downloadTask, Int(totalBytesWritten), nil)
    }

    func urlSession(
        _ session: URLSession, downloadTask: URLSessionDownloadTask, didFinishDownloadingTo location: URL
    ) {
        // On failure nothing is stored: the waiter then downloads the file in blocks.
        guard let path = downloadTask.taskDescription,
            (downloadTask.response as? HTTPURLResponse)?.statusCode == 200
        else { return }
        let file = URL(fileURLWithPath: path)
        do {
            try? FileManager.default.removeItem(at: file)
            try FileManager.default.moveItem(at: location, to: file)
        } catch let problem {
            let error = VoxCPMError.storage(path: path, problem: reason(problem))
            note(downloadTask, 0, .failure(error))
        }
    }

    func urlSession(_ session: URLSession, task: URLSessionTask, didCompleteWithError error: (any Error)?) {
        note(task, 0, error.map { .failure($0) } ?? .success(()))
    }

    #if !os(Linux)
    func urlSessionDidFinishEvents(forBackgroundURLSession session: URLSession) {
        let done = lock.withLock { () -> Handler? in
            defer { whenDone = nil }
            return whenDone
        }
        if let done { DispatchQueue.main.async { done.call() } }
    }
    #endif

    /// The first end of a transfer counts.
    private func note(_ task: URLSessionTask, _ bytes: Int, _ end: Result<Void, any Error>?) {
        guard let path = task.taskDescription else { return }
        lock.withLock { if transfers[path]?.end == nil { transfers[path] = (bytes, end) } }
    }
}

extension TextToSpeech {
    /// Hand over what iOS gives to the app's `application(_:handleEventsForBackgroundURLSession:completionHandler:)`.
    /// False for the session of something else.
    public static func handleBackgroundDownloads(
        of session: String, completionHandler: @escaping () -> Void
    ) -> Bool {
        guard session == BackgroundDownloads.identifier else { return false }
        BackgroundDownloads.shared.finish(completionHandler)
        return true
    }
}
