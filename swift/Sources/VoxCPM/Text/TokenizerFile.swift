import Foundation

/// What `tokenizer.json` and `tokenizer_config.json` of a bundle say, as constants/voxcpm_constants/tokenizer_file.py
/// reads them.
///
/// A file with Llama's normaliser, as every published checkpoint has, is run in Llama's pipeline. Any other is run as it
/// is, with the steps that VoxCPM's own voices use.
struct TokenizerFile {
    /// A token that is cut out of a text before BPE.
    struct AddedToken {
        let content: [UInt8]
        let isSpecial: Bool
        /// Whether it is looked for after the normalising steps.
        let isNormalized: Bool
    }

    enum Step {
        case lowercase
        case prepend([UInt8])
        case replace([UInt8], with: [UInt8])
    }

    /// Where Llama's pipeline puts a word start before a text.
    enum WordStart { case always, first, never }

    var vocabulary: [[UInt8]: Int] = [:]
    var merges: [([UInt8], [UInt8])] = []
    var added: [AddedToken] = []
    var steps: [Step] = []
    /// nil without Llama's pipeline.
    var wordStart: WordStart?
    var unknown: [UInt8]?
    /// The name of the token of unknown characters, also where the pipeline leaves them out.
    var unknownName: [UInt8]
    var fusesUnknown = false
    var fallsBackToBytes = false
    var cutsSpecial = true

    /// Throws `VoxCPMError.bundle`.
    init(_ folder: URL) throws {
        let config = try Self.read(folder, "tokenizer_config.json")
        let document = try Self.read(folder, "tokenizer.json")
        unknownName = config["unk_token"].flatMap(Self.name) ?? Array("<unk>".utf8)
        do {
            try fill(document, config)
        } catch let problem as Problem {
            throw VoxCPMError.bundle(file: "tokenizer/tokenizer.json", problem: problem.text)
        }
    }

    private static func read(_ folder: URL, _ name: String) throws -> ByteJSON {
        do {
            let document = try ByteJSON(Data(contentsOf: folder.appendingPathComponent(name)))
            guard case .object = document else { throw Problem("expected a JSON object") }
            return document
        } catch let problem as Problem {
            throw VoxCPMError.bundle(file: "tokenizer/\(name)", problem: problem.text)
        } catch {
            throw VoxCPMError.bundle(file: "tokenizer/\(name)", problem: "cannot be read")
        }
    }

    private static func name(_ value: ByteJSON) -> [UInt8]? { value.bytes ?? value["content"]?.bytes }

    private mutating func fill(_ document: ByteJSON, _ config: ByteJSON) throws {
        guard let model = document["model"], (model["type"]?.text ?? "BPE") == "BPE",
            case .object(let entries)? = model["vocab"]
        else { throw Problem("expected a BPE tokenizer, as every VoxCPM has") }
        for (token, id) in entries {
            guard let id = id.integer, id >= 0 else { throw Problem("a token has no id") }
            vocabulary[token] = id
        }
        for merge in model["merges"]?.elements ?? [] {
            let pair = merge.elements?.compactMap(\.bytes)
                ?? merge.bytes.map { $0.split(separator: 0x20, omittingEmptySubsequences: false).map(Array.init) } ?? []
            guard pair.count == 2 else { throw Problem("a merge is not of two tokens") }
            merges.append((pair[0], pair[1]))
        }
        let listed = try Self.added(document["added_tokens"]?.elements ?? [])
        guard try isLlama(document["normalizer"]) else {
            guard document["pre_tokenizer"]?.isNull ?? true else { throw Problem("a pre-tokenizer is not supported") }
            added = listed
            unknown = model["unk_token"].flatMap(Self.name)
            fusesUnknown = model["fuse_unk"]?.isTrue ?? false
            fallsBackToBytes = model["byte_fallback"]?.isTrue ?? false
            return
        }
        steps = []
        fusesUnknown = true
        fallsBackToBytes = true
        cutsSpecial = !(config["split_special_tokens"]?.isTrue ?? false)
        if case .bool(false)? = config["add_prefix_space"] {
            wordStart = .never
        } else {
            wordStart = config["legacy"]?.isTrue ?? false ? .always : .first
        }
        added = listed
        if case .object(let members)? = config["added_tokens_decoder"] {
            let byID = try members.map { member in
                guard let id = Int(String(decoding: member.key, as: UTF8.self)) else { throw Problem("a token has no id") }
                return (id, member.value)
            }
            added = try Self.added(byID.sorted { $0.0 < $1.0 }.map(\.1), sorts: false)
        }
        addNamed(config)
    }

    /// The special tokens that have names, in the order in which transformers adds them.
    private mutating func addNamed(_ config: ByteJSON) {
        let defaults = ["bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"]
        let keys = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"]
        var names = keys.compactMap { key in
            config[key].map(Self.name) ?? defaults[key].map { Array($0.utf8) }
        }
        let extra = [config["extra_special_tokens"], config["additional_special_tokens"]].compactMap(\.self)
            .first { ($0.elements?.isEmpty == false) || $0.members?.isEmpty == false }
        names += (extra?.elements ?? extra?.members?.map(\.value) ?? []).compactMap(Self.name)
        for name in names where !added.contains(where: { $0.content == name }) {
            added.append(AddedToken(content: name, isSpecial: true, isNormalized: false))
        }
    }

    private static func added(_ records: [ByteJSON], sorts: Bool = true) throws -> [AddedToken] {
        let tokens = try records.map { record in
            guard let content = record["content"]?.bytes, !content.isEmpty else { throw Problem("a token has no content") }
            for key in ["single_word", "lstrip", "rstrip"] where record[key]?.isTrue ?? false {
                throw Problem("tokens with \(key) are not supported")
            }
            let isSpecial = record["special"]?.isTrue ?? false
            let isNormalized = record["normalized"].map(\.isTrue) ?? !isSpecial
            return (
                record["id"]?.integer ?? 0,
                AddedToken(content: content, isSpecial: isSpecial, isNormalized: isNormalized)
            )
        }
        return (sorts ? tokens.sorted { $0.0 < $1.0 } : tokens).map(\.1)
    }

    /// Reads the normalising steps. Returns whether they are Llama's.
    private mutating func isLlama(_ normalizer: ByteJSON?) throws -> Bool {
        guard let normalizer, !normalizer.isNull else { return false }
        let isSequence = normalizer["type"]?.text == "Sequence"
        for step in isSequence ? normalizer["normalizers"]?.elements ?? [] : [normalizer] {
            switch step["type"]?.text {
            case "Lowercase": steps.append(.lowercase)
            case "Prepend":
                guard let text = step["prepend"]?.bytes, !text.isEmpty else { throw Problem("a step Prepend is empty") }
                steps.append(.prepend(text))
            case "Replace":
                guard let pattern = step["pattern"]?["String"]?.bytes, !pattern.isEmpty,
                    let content = step["content"]?.bytes
                else { throw Problem("a step Replace has no text") }
                steps.append(.replace(pattern, with: content))
            default: throw Problem("its step \(step["type"]?.text ?? "") is not supported")
            }
        }
        guard isSequence, steps.count == 2, case .prepend(let start) = steps[0],
            case .replace(let space, let content) = steps[1]
        else { return false }
        return start == Array("\u{2581}".utf8) && space == [0x20] && content == start
    }
}

extension ByteJSON {
    var members: [(key: [UInt8], value: ByteJSON)]? {
        if case .object(let members) = self { return members }
        return nil
    }
}
