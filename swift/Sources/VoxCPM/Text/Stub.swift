// Until the real one is here.
import Foundation
func spelled(_ t: String, _ k: TextTokenizer) throws -> String { t }
func spelledTranscript(_ t: String, _ k: TextTokenizer) throws -> String { t }
func continuedTranscript(_ t: String, _ k: TextTokenizer) -> String { k.hasLettersOnly ? t + "\n\n" : t + " " }
func saidText(_ t: String) -> String {
    var r = "", gap = false
    for s in t.unicodeScalars { if s.properties.isWhitespace { gap = true } else { if gap { r += " " }; gap = false; r.unicodeScalars.append(s) } }
    return gap ? r + " " : r
}
