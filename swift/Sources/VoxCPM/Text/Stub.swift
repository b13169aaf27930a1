// Until the real one is here.
import Foundation
struct TextTokenizer: Sendable {
    let hasLettersOnly = false
    init(_ folder: URL) throws {}
    func callAsFunction(_ text: String) throws -> [Int] { text.unicodeScalars.map { Int($0.value) % 64 } }
}
struct Segment: Sendable { let text: String; let endsParagraph: Bool }
func checkText(_ text: String) throws {}
func checkedControl(_ control: String?, _ g: Manifest.Generation, continues: Bool) throws -> String { control ?? "" }
func controlled(_ t: String, _ d: String) -> String { "(\(d))\(t)" }
func withoutControl(_ t: String) -> String { t }
func spelled(_ t: String, _ k: TextTokenizer) throws -> String { t }
func spelledTranscript(_ t: String, _ k: TextTokenizer) throws -> String { t }
func continuedTranscript(_ t: String, _ k: TextTokenizer) -> String { t + " " }
func saidText(_ t: String) -> String { t }
func lettersIn(_ t: String) -> Int { t.unicodeScalars.filter { $0.properties.isAlphabetic || $0.properties.numericType != nil }.count }
func oneSegment(_ t: String) -> Segment? { Segment(text: t, endsParagraph: false) }
func eachSegment(_ t: String, target: Int, _ count: (String) throws -> Int) throws -> [Segment] { t.split(separator: ".").map { Segment(text: String($0), endsParagraph: false) } }
struct SentenceCutter: Sendable { mutating func push(_ t: String) -> [String] { [t] }; mutating func flush() -> [String] { [] } }
