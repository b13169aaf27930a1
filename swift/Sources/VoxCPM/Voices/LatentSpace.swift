import Foundation

/// The configuration of an AudioVAE, which determines whether a voice's latents are compatible.
///
/// Serialised like Python's model dump, in this order and with its defaults.
struct AudioVAEConfiguration: Sendable, Decodable {
    let document: String

    private enum CodingKeys: String, CodingKey {
        case encoder_dim, encoder_rates, latent_dim, decoder_dim, decoder_rates, depthwise, sample_rate
        case use_noise_block, out_sample_rate, sr_bin_boundaries, cond_type, cond_dim, cond_out_layer
    }

    init(from decoder: any Decoder) throws {
        let container = try decoder.container(keyedBy: CodingKeys.self)

        func whole(_ key: CodingKeys, _ standard: Int) throws -> String {
            "\(try container.decodeIfPresent(Int.self, forKey: key) ?? standard)"
        }
        func flag(_ key: CodingKeys, _ standard: Bool) throws -> String {
            "\(try container.decodeIfPresent(Bool.self, forKey: key) ?? standard)"
        }
        func list(_ key: CodingKeys, _ standard: [Int]?) throws -> String {
            guard let list = try container.decodeIfPresent([Int].self, forKey: key) ?? standard else { return "null" }
            return "[\(list.map(String.init).joined(separator: ","))]"
        }
        let rate = try container.decodeIfPresent(Int.self, forKey: .out_sample_rate).map(String.init) ?? "null"
        let condition = try container.decodeIfPresent(String.self, forKey: .cond_type) ?? "scale_bias"
        let fields: [(CodingKeys, String)] = [
            (.encoder_dim, try whole(.encoder_dim, 128)),
            (.encoder_rates, try list(.encoder_rates, [2, 5, 8, 8])),
            (.latent_dim, try whole(.latent_dim, 64)),
            (.decoder_dim, try whole(.decoder_dim, 1536)),
            (.decoder_rates, try list(.decoder_rates, [8, 8, 5, 2])),
            (.depthwise, try flag(.depthwise, true)),
            (.sample_rate, try whole(.sample_rate, 16000)),
            (.use_noise_block, try flag(.use_noise_block, false)),
            (.out_sample_rate, rate),
            (.sr_bin_boundaries, try list(.sr_bin_boundaries, nil)),
            (.cond_type, pydanticJSON(condition)),
            (.cond_dim, try whole(.cond_dim, 128)),
            (.cond_out_layer, try flag(.cond_out_layer, false)),
        ]
        document = "{" + fields.map { "\"\($0.rawValue)\":\($1)" }.joined(separator: ",") + "}"
    }
}

extension Manifest.Architecture {
    /// A digest that is equal for two bundles with compatible latents.
    var latentSpace: String {
        let parts = "\(generation.rawValue)|\(patchSize)|\(featDim)|\(audioVAE.document)"
        return String(SHA256.hex(Data(parts.utf8)).prefix(16))
    }
}
