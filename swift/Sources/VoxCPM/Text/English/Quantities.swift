/// Money, measures, telephone numbers, versions, fractions, ranges and other numbers, in words.
enum Quantities {
    /// Symbol → singular and plural of the currency and of its hundredth.
    private static let currencies: [String: [String]] = [
        "$": ["dollar", "dollars", "cent", "cents"], "£": ["pound", "pounds", "penny", "pence"],
        "€": ["euro", "euros", "cent", "cents"], "¥": ["yen", "yen", "sen", "sen"],
        "₹": ["rupee", "rupees", "paisa", "paise"], "¢": ["cent", "cents"],
        "USD": ["US dollar", "US dollars", "cent", "cents"], "EUR": ["euro", "euros", "cent", "cents"],
        "GBP": ["pound", "pounds", "penny", "pence"],
    ]
    private static let scales = [
        "k": "thousand", "K": "thousand", "m": "million", "M": "million", "bn": "billion", "b": "billion",
        "B": "billion", "tn": "trillion", "thousand": "thousand", "million": "million", "billion": "billion",
        "trillion": "trillion",
    ]
    /// Symbol → singular and plural, without units that are also words or letters.
    private static let units: [String: (one: String, several: String)] = [
        "%": ("percent", "percent"), "°": ("degree", "degrees"), "°C": ("degree celsius", "degrees celsius"),
        "°F": ("degree fahrenheit", "degrees fahrenheit"), "km": ("kilometer", "kilometers"),
        "cm": ("centimeter", "centimeters"), "mm": ("millimeter", "millimeters"), "m": ("meter", "meters"),
        "kg": ("kilogram", "kilograms"), "g": ("gram", "grams"), "mg": ("milligram", "milligrams"),
        "l": ("liter", "liters"), "ml": ("milliliter", "milliliters"), "ft": ("foot", "feet"),
        "mph": ("mile per hour", "miles per hour"), "mi": ("mile", "miles"), "lb": ("pound", "pounds"),
        "lbs": ("pound", "pounds"), "oz": ("ounce", "ounces"), "Hz": ("hertz", "hertz"),
        "kHz": ("kilohertz", "kilohertz"),
        "MHz": ("megahertz", "megahertz"), "GHz": ("gigahertz", "gigahertz"), "min": ("minute", "minutes"),
        "h": ("hour", "hours"), "hr": ("hour", "hours"), "hrs": ("hour", "hours"), "s": ("second", "seconds"),
        "ms": ("millisecond", "milliseconds"), "kB": ("kilobyte", "kilobytes"), "KB": ("kilobyte", "kilobytes"),
        "MB": ("megabyte", "megabytes"), "GB": ("gigabyte", "gigabytes"), "TB": ("terabyte", "terabytes"),
        "kW": ("kilowatt", "kilowatts"), "kWh": ("kilowatt hour", "kilowatt hours"),
    ]

    // Bounded lengths keep the search linear in long lines of digits.
    private static let number = #"(?:\d{1,3}(?:,\d{3}){1,12}(?!\d)|\d{1,40})(?:\.\d{1,40})?|\.\d{1,40}"#
    private static let minimum = "(?<minimum>\(number))\\s?[–-]\\s?"
    private static let before = #"(?<article>\b[Aa]n?\s)?(?<sign>(?<![\w.)])[-−])?"#
    private static let scale = "(?:\\s?(?<scale>\(anyOf(scales.keys)))\\b)?"
    private static let symbol = "(?<currency>\(anyOf(currencies.keys.filter { $0.count == 1 })))"
    private static let code = "(?<currency>\(anyOf(currencies.keys)))"

    private static func withMinimum(_ found: Rule.Found, _ said: String) -> String {
        found["minimum"].isEmpty ? said : "\(NumberNames.decimal(found["minimum"])) to \(said)"
    }

    /// Whether the unit is singular: after 1, and in "a 5 km run".
    private static func isOne(_ found: Rule.Found) -> Bool {
        !found["article"].isEmpty || (found["number"] == "1" && found["minimum"].isEmpty)
    }

    private static func money(_ found: Rule.Found, spelled: Bool) -> String {
        guard var names = currencies[found["currency"]], names.count > 1 else { return found.whole }
        if spelled { names = names.map { $0.replacingOccurrences(of: "US", with: "you ess") } }
        let number = found["number"], scale = found["scale"], article = found["article"]
        let plain = number.filter { $0 != "," }
        let pieces = plain.split(separator: ".", omittingEmptySubsequences: false).map(String.init)
        let whole = pieces.first ?? "", part = pieces.count > 1 ? pieces[1] : ""
        let sign = found["sign"].isEmpty ? "" : "minus "
        let unit = isOne(found) && !(!scale.isEmpty && article.isEmpty) ? names[0] : names[1]
        if !scale.isEmpty || ![0, 2].contains(part.count) || names.count < 4 {
            let said = [NumberNames.decimal(number), scales[scale] ?? "", unit].filter { !$0.isEmpty }
            return article + withMinimum(found, sign + said.joined(separator: " "))
        }
        let cents = Int(part) ?? 0
        let coins = cents > 0 ? "\(NumberNames.cardinal(String(cents))) \(cents == 1 ? names[2] : names[3])" : ""
        let note = whole == "1" && found["minimum"].isEmpty ? names[0] : unit
        let notes = whole.contains { $0 != "0" } || coins.isEmpty ? "\(NumberNames.cardinal(whole)) \(note)" : ""
        return article + withMinimum(found, sign + [notes, coins].filter { !$0.isEmpty }.joined(separator: " and "))
    }

    private static func measure(_ found: Rule.Found) -> String {
        guard let unit = units[found["unit"]] else { return found.whole }
        let name = isOne(found) || found["dash"] == "-" ? unit.one : unit.several
        let number = withMinimum(found, NumberNames.decimal(found["number"]))
        return "\(found["article"])\(found["sign"].isEmpty ? "" : "minus ")\(number) \(name)"
    }

    /// A telephone number: digits, with a pause after each group.
    private static func groups(_ found: Rule.Found) -> String {
        let groups = found.whole.split { !$0.isNumber }.map { NumberNames.digitNames(String($0)) }
        return (found.whole.hasPrefix("+") ? "plus " : "") + groups.joined(separator: ", ")
    }

    private static func parts(_ number: String) -> String {
        number.split(separator: ".").map { NumberNames.cardinal(String($0)) }.joined(separator: " point ")
    }

    private static func fraction(_ found: Rule.Found) -> String {
        let said = NumberNames.fraction(found["upper"], found["lower"]), whole = found["whole"]
        guard !whole.isEmpty else { return said }
        return "\(NumberNames.cardinal(whole)) and \(said.hasPrefix("one ") ? "a \(said.dropFirst(4))" : said)"
    }

    private static func side(_ number: String) -> String {
        number.count == 4 && !number.contains(".") ? NumberNames.inPairs(number) : NumberNames.decimal(number)
    }

    /// Letters and digits in one word: MP3, H2O, 4K.
    private static func mixed(_ found: Rule.Found, spelled: Bool) -> String {
        var pieces: [String] = []
        for char in found.whole.unicodeScalars {
            if let last = pieces.last?.unicodeScalars.last, last.isDecimal == char.isDecimal {
                pieces[pieces.count - 1].unicodeScalars.append(char)
            } else {
                pieces.append(String(char))
            }
        }
        return pieces.map { piece in
            if piece.unicodeScalars.first?.isDecimal != true {
                return spelled && piece.count <= 3 ? NumberNames.letterByLetter(piece) : piece
            }
            if piece.count == 4 { return NumberNames.inPairs(piece) }
            return piece.count < 3 ? NumberNames.cardinal(piece) : NumberNames.digitNames(piece)
        }.joined(separator: " ")
    }

    private static func power(_ found: Rule.Found) -> String {
        if found.whole == "^2" || found.whole == "^3" { return found.whole == "^2" ? " squared" : " cubed" }
        return " to the power of \(found[1].isEmpty ? "" : "minus ")\(NumberNames.cardinal(found[2]))"
    }

    /// Numbers with context.
    static func first(spelled: Bool) -> [Rule?] { [
        Rule(#"(?<![\w+])\+\d{1,3}(?:[ .-]\(?\d{2,4}\)?){2,5}(?![\w-])"#, groups),
        Rule(#"(?<![\w.-])(?:1[ .-])?(?:\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4}(?![\w-])"#, groups),
        Rule(#"(?<![\w.,-])\d{3}-\d{4}(?![\w-]|[.,]\d)"#, groups),
        Rule(#"(?<=\b[Cc]all )\d{3}\b|(?<=\b[Dd]ial )\d{3}\b"#) { NumberNames.digitNames($0.whole) },
        Rule(#"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?!\w|\.\d)"#) {
            $0.whole.split(separator: ".").map { NumberNames.digitNames(String($0)) }.joined(separator: " dot ")
        },
        Rule(#"(?<=[\d%kmMbn])\s?[–-]\s?(?=[$£€¥]\d)|(?<=\d%)\s?[–-]\s?(?=\d)"#, " to "),
        Rule(#"\#(before)\#(symbol)\s?(?:\#(minimum)(?:\k<currency>)?)?(?<number>\#(number))\#(scale)"#) {
            money($0, spelled: spelled)
        },
        Rule(#"\#(before)(?<![\w.])(?:\#(minimum))?(?<number>\#(number))\#(scale)\s?\#(code)(?!\w)"#) {
            money($0, spelled: spelled)
        },
        Rule(
            #"\#(before)(?<![\w.,^/])(?:\#(minimum))?(?<number>\#(number))(?<dash>-|\s)?"#
                + #"(?<unit>\#(anyOf(units.keys)))(?![\w'^&/])(?:\.(?=\s+[a-z]))?"#,
            measure),
    ] }

    /// All other numbers.
    static func rest(spelled: Bool) -> [Rule?] { [
        Rule(#"(?<![\w.])(?:v|V(?=\d+\.\d)|v\.\s?)(?<number>\d+(?:\.\d+){0,9})(?!\w|\.\d)"#) {
            "version \(parts($0["number"]))"
        },
        Rule(#"(?<![\w.])\d+(?:\.\d+){2,9}(?!\w|\.\d)"#) { parts($0.whole) },
        Rule(#"(?<=\b[Aa] )1/2(?=\s[a-z])"#, "half"),
        Rule(#"(?<=\d/\d)\s?[-–—]\s?(?=\d{1,2}/\d{1,2}\b)"#, " to "),
        Rule(#"(?<![\w.,/^])(?:(?<whole>\d{1,3}) )?(?<upper>\d{1,3})/(?<lower>\d{1,3})(?![\w/]|[.,]\d)"#, fraction),
        Rule(#"(?<![\w.])(\d+(?:\.\d+)?)\s?([x×])\s?(\d+(?:\.\d+)?)(?!\w|\.\d)"#) {
            "\(side($0[1])) \($0[2] == "×" ? "times" : "by") \(side($0[3]))"
        },
        Rule(#"(?<![\w.])(\d+(?:\.\d+)?)[x×](?![\w^])"#) { "\(NumberNames.decimal($0[1])) times" },
        Rule(#"(?<=\w)\^([-−]?)(\d+)"#, power),
        Rule(#"(?<=\d)\s?[–—]\s?(?=\d)|(?<=[\d%])-(?=\d)"#, " to "),
        Rule(#"(?<=\d) [-−] (?=\d)"#, " minus "),
        Rule(#"(?<![\w.)])[-−](?=\.?\d)"#, "minus "),
        Rule(#"(?<=\d):(?=\d)"#, " to "),
        Rule(#"(?<![\w.,])(\d[\d,]{0,40})(?:st|nd|rd|th|ST|ND|RD|TH)\b"#) { NumberNames.ordinal($0[1]) },
        Rule(#"(?<=[A-Z])-(?=[\d\#(spelled ? "A-Z" : "")])|(?<=\d)-(?=[A-Z])"#, " "),
        Rule(#"(?<![\w.,])(?=[A-Za-z]{0,20}\d)(?=\d{0,20}[A-Za-z])[A-Za-z\d]+(?!\w)"#) { mixed($0, spelled: spelled) },
        Rule(#"(?<![\d.])(?:\#(number))"#) { NumberNames.decimal($0.whole) },
        // The rest: numbers next to letters, or in unusual forms.
        Rule(#"\d+"#) { " \(NumberNames.digitNames($0.whole)) " },
    ] }
}
