import Foundation

/// A bounded queue between two tasks, with backpressure: producers wait while it is full, consumers while it is empty.
///
/// Unchecked: a lock guards all state.
final class Channel<Element: Sendable>: @unchecked Sendable {
    private let lock = NSLock()
    private let capacity: Int
    private var items: [Element] = []
    /// The result after the items; nil while the channel is open.
    private var end: Result<Void, any Error>?
    private var readers: [(id: Int, continuation: CheckedContinuation<Element?, any Error>)] = []
    private var writers: [(id: Int, continuation: CheckedContinuation<Void, any Error>)] = []
    private var count = 0

    /// - Parameter capacity: maximum number of queued items for `send`.
    init(capacity: Int = .max) { self.capacity = capacity }

    /// Add an item without waiting. No-op after the end.
    func put(_ item: Element) {
        let reader: CheckedContinuation<Element?, any Error>? = lock.withLock {
            guard end == nil else { return nil }
            if readers.isEmpty {
                items.append(item)
                return nil
            }
            return readers.removeFirst().continuation
        }
        reader?.resume(returning: item)
    }

    /// Add an item, and wait until there is room for another.
    ///
    /// Throws `CancellationError` if the task or the channel is cancelled.
    func send(_ item: Element) async throws {
        try Task.checkCancellation()
        put(item)
        let id = newID()
        try await withTaskCancellationHandler {
            try await withCheckedThrowingContinuation { (continuation: CheckedContinuation<Void, any Error>) in
                let ready: Result<Void, any Error>? = lock.withLock {
                    if Task.isCancelled || end != nil { return .failure(CancellationError()) }
                    if items.count < capacity { return .success(()) }
                    writers.append((id, continuation))
                    return nil
                }
                if let ready { continuation.resume(with: ready) }
            }
        } onCancel: {
            let writer = lock.withLock { taken(&writers, id) }
            writer?.resume(throwing: CancellationError())
        }
    }

    /// The next item; nil after the last one.
    ///
    /// Throws the error that ended the channel, after its items, and `CancellationError`.
    func next() async throws -> Element? {
        let id = newID()
        return try await withTaskCancellationHandler {
            try await withCheckedThrowingContinuation { (continuation: CheckedContinuation<Element?, any Error>) in
                var writer: CheckedContinuation<Void, any Error>?
                let ready: Result<Element?, any Error>? = lock.withLock {
                    if Task.isCancelled { return .failure(CancellationError()) }
                    if !items.isEmpty {
                        let item = items.removeFirst()
                        if items.count < capacity, !writers.isEmpty { writer = writers.removeFirst().continuation }
                        return .success(item)
                    }
                    if let end { return end.map { nil } }
                    readers.append((id, continuation))
                    return nil
                }
                writer?.resume()
                if let ready { continuation.resume(with: ready) }
            }
        } onCancel: {
            let reader = lock.withLock { taken(&readers, id) }
            reader?.resume(throwing: CancellationError())
        }
    }

    /// End the channel after the queued items. Only the first end counts.
    func finish(throwing error: (any Error)? = nil) {
        close(dropping: false, error.map { .failure($0) } ?? .success(()))
    }

    /// End the channel, drop queued items, and make producers throw.
    func cancel() { close(dropping: true, .failure(CancellationError())) }

    private func close(dropping: Bool, _ result: Result<Void, any Error>) {
        let (ended, readers, writers) = lock.withLock {
            if dropping { items = [] }
            if end == nil || dropping { end = result }
            defer { (self.readers, self.writers) = ([], []) }
            return (end ?? result, self.readers, self.writers)
        }
        for reader in readers { reader.continuation.resume(with: ended.map { nil }) }
        for writer in writers { writer.continuation.resume(throwing: CancellationError()) }
    }

    private func newID() -> Int {
        lock.withLock {
            count &+= 1
            return count
        }
    }

    private func taken<Value>(
        _ waiting: inout [(id: Int, continuation: CheckedContinuation<Value, any Error>)], _ id: Int
    ) -> CheckedContinuation<Value, any Error>? {
        guard let place = waiting.firstIndex(where: { $0.id == id }) else { return nil }
        return waiting.remove(at: place).continuation
    }
}

/// A task that fills a channel, and is cancelled when the stream is dropped or its consumer is cancelled.
final class Production<Element: Sendable>: Sendable {
    let channel: Channel<Element>
    private let task: Task<Void, Never>

    /// - Parameters:
    ///   - capacity: maximum number of queued elements.
    ///   - produce: fills the channel; its errors are thrown to the consumer.
    init(capacity: Int, _ produce: @escaping @Sendable (Channel<Element>) async throws -> Void) {
        let channel = Channel<Element>(capacity: capacity)
        self.channel = channel
        task = Task {
            do {
                try await produce(channel)
                channel.finish()
            } catch {
                channel.finish(throwing: error)
            }
        }
    }

    deinit { cancel() }

    func cancel() {
        task.cancel()
        channel.cancel()
    }

    /// Wait until the task has ended.
    func ended() async { await task.value }

    /// The elements. Cancelling the consumer, or dropping the stream, cancels the task.
    var stream: AsyncThrowingStream<Element, any Error> {
        AsyncThrowingStream {
            try await withTaskCancellationHandler {
                try await self.channel.next()
            } onCancel: {
                self.cancel()
            }
        }
    }
}
