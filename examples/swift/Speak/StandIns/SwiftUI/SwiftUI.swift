// The part of SwiftUI that the app uses, to type-check it without a Mac. Nothing is drawn.

@_exported import Foundation

@MainActor public protocol View {
    associatedtype Body: View
    @ViewBuilder var body: Body { get }
}

extension Never: View {
    public var body: Never { return fatalError("nothing is drawn") }
}

public struct Drawn: View {
    public typealias Body = Never

    public nonisolated init() {}

    public var body: Never { return fatalError("nothing is drawn") }
}

@resultBuilder public enum ViewBuilder {
    public static func buildBlock<each Content: View>(_ content: repeat each Content) -> Drawn { Drawn() }

    public static func buildOptional(_ content: Drawn?) -> Drawn { Drawn() }
}

@MainActor public protocol Scene {
    associatedtype Body: Scene
    @SceneBuilder var body: Body { get }
}

extension Never: Scene {}

@resultBuilder public enum SceneBuilder {
    public static func buildBlock<Content: Scene>(_ content: Content) -> Content { content }
}

public struct WindowGroup: Scene {
    public typealias Body = Never

    public init(@ViewBuilder content: () -> Drawn) {}

    public var body: Never { return fatalError("nothing is drawn") }
}

@MainActor public protocol App {
    associatedtype Content: Scene
    @SceneBuilder var body: Content { get }
    init()
}

extension App {
    public static func main() {}
}

public protocol ObservableObject: AnyObject {}

@propertyWrapper public struct Published<Value> {
    public var wrappedValue: Value

    public init(wrappedValue: Value) { self.wrappedValue = wrappedValue }
}

@MainActor @propertyWrapper public struct StateObject<Object: ObservableObject> {
    public let wrappedValue: Object

    public init(wrappedValue: @autoclosure () -> Object) { self.wrappedValue = wrappedValue() }
}

@MainActor @propertyWrapper public struct ObservedObject<Object: ObservableObject> {
    public let wrappedValue: Object

    public init(wrappedValue: Object) { self.wrappedValue = wrappedValue }

    public var projectedValue: Bindings<Object> { Bindings(object: wrappedValue) }
}

@MainActor @dynamicMemberLookup public struct Bindings<Object: AnyObject> {
    let object: Object

    public subscript<Value>(dynamicMember path: ReferenceWritableKeyPath<Object, Value>) -> Binding<Value> { Binding() }
}

@MainActor @propertyWrapper public struct State<Value> {
    public var wrappedValue: Value {
        get { value }
        nonmutating set {}
    }
    private let value: Value

    public init(wrappedValue: Value) { value = wrappedValue }

    public var projectedValue: Binding<Value> { Binding() }
}

public struct Binding<Value> {}

public enum HorizontalAlignment: Sendable { case leading, center, trailing }

public struct UTType: Sendable {
    public static let folder = UTType()
    public static let audio = UTType()
}

@MainActor public func VStack(
    alignment: HorizontalAlignment = .center, spacing: Double? = nil, @ViewBuilder content: () -> Drawn
) -> Drawn { Drawn() }

@MainActor public func HStack(@ViewBuilder content: () -> Drawn) -> Drawn { Drawn() }

@MainActor public func Text(_ text: String) -> Drawn { Drawn() }

@MainActor public func TextEditor(text: Binding<String>) -> Drawn { Drawn() }

@MainActor public func TextField(_ title: String, text: Binding<String>) -> Drawn { Drawn() }

@MainActor public func Button(_ title: String, action: @escaping @MainActor () -> Void) -> Drawn { Drawn() }

@MainActor public func Picker<Value: Hashable>(
    _ title: String, selection: Binding<Value>, @ViewBuilder content: () -> Drawn
) -> Drawn { Drawn() }

@MainActor public func ForEach<Item, ID: Hashable>(
    _ items: [Item], id: KeyPath<Item, ID>, @ViewBuilder content: @escaping (Item) -> Drawn
) -> Drawn { Drawn() }

extension View {
    public func disabled(_ isDisabled: Bool) -> Drawn { Drawn() }

    public func padding() -> Drawn { Drawn() }

    public func fileImporter(
        isPresented: Binding<Bool>, allowedContentTypes: [UTType],
        onCompletion: @escaping @MainActor (Result<URL, any Error>) -> Void
    ) -> Drawn { Drawn() }
}

extension URL {
    public func startAccessingSecurityScopedResource() -> Bool { true }

    public static var documentsDirectory: URL { URL(fileURLWithPath: NSTemporaryDirectory()) }
}
