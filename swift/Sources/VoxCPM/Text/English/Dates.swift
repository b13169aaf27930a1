import Foundation

/// Dates, years, decades and times of day in words.
enum Dates {
    private static let months: [(short: String, name: String)] = [
        ("Jan", "January"), ("Feb", "February"), ("Mar", "March"), ("Apr", "April"), ("May", "May"), ("Jun", "June"),
        ("Jul", "July"), ("Aug", "August"), ("Sep", "September"), ("Oct", "October"), ("Nov", "November"),
        ("Dec", "December"),
    ]
    private static let shortMonths = months.map(\.short).joined(separator: "|")
    private static let month = "(?<month>\(anyOf(months.map(\.name)))|(?:\(shortMonths)|Sept)\\b\\.?)"
    private static let day = #"(?<day>0?[1-9]|[12]\d|3[01])(?:st|nd|rd|th)?"#
    private static let year = #"(?<year>1\d{3}|20\d\d)(?![\d,]*\d|\.\d|[%°€£])"#
    private static let article = "(?:[Tt]he|[Tt]his|[Ee]very|[Ll]ast|[Nn]ext|[Aa]|his|her|my|our|their)"
    private static let meridiem = #"(?<meridiem>[AaPp])\.?[Mm]\b\.?"#
    private static let hour = #"(?<hour>[01]?\d|2[0-4])"#
    private static let minute = #"(?<minute>[0-5]\d)"#
    private static let afterTimes = Set(
        months.map(\.name) + ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
            + ["Mon", "Tue", "Tues", "Wed", "Thu", "Thur", "Thurs", "Fri", "Sat", "Sun"]
            + ["Central", "Eastern", "Greenwich", "Mountain", "Pacific"])

    private static func name(_ month: String) -> String {
        months.first { month.hasPrefix($0.short) }?.name ?? month
    }

    private static func withYear(_ said: String, _ year: String) -> String {
        guard !year.isEmpty else { return said }
        return "\(said), \(year.count > 2 ? NumberNames.year(year) : NumberNames.cardinal(year))"
    }

    private static func date(_ found: Rule.Found) -> String {
        withYear("\(name(found["month"])) \(NumberNames.ordinal(found["day"]))", found["year"])
    }

    private static func dayFirst(_ found: Rule.Found) -> String {
        let article = found["article"].isEmpty ? "the " : found["article"]
        return withYear("\(article)\(NumberNames.ordinal(found["day"])) of \(name(found["month"]))", found["year"])
    }

    /// A numeric date, month first as in American English; a number above 12 is the day.
    private static func numeric(_ found: Rule.Found) -> String {
        guard let day = Int(found["day"]), let month = Int(found["month"]), min(day, month) > 0,
            min(day, month) <= 12, max(day, month) <= 31
        else { return found.whole }
        let first = month <= 12 ? (month, day) : (day, month)
        return withYear("\(months[first.0 - 1].name) \(NumberNames.ordinal(String(first.1)))", found["year"])
    }

    private static func time(_ found: Rule.Found, spelled: Bool) -> String {
        let hour = Int(found["hour"]) ?? 0, minute = found["minute"], second = found["second"], half = found["meridiem"]
        var words = [NumberNames.cardinal(String(hour))]
        if !second.isEmpty {
            words += [NumberNames.minutes(minute.isEmpty ? "00" : minute), NumberNames.minutes(second)]
        } else if minute == "00", half.isEmpty {
            let isPlain = ["noon", "midnight"].contains { found.after.drop(while: \.isWhitespace).hasPrefix($0) }
            if !isPlain { words.append((1...12).contains(hour) ? "o'clock" : "hundred") }
        } else if !minute.isEmpty, minute != "00" {
            words.append(NumberNames.minutes(minute))
        }
        if !half.isEmpty { words.append(spelled ? NumberNames.letterByLetter("\(half)m") : "\(half)m".uppercased()) }
        // The dot of p.m. also ends the sentence, except before a day or time zone.
        let after = found.after, next = after.drop(while: \.isWhitespace)
        let word = String(next.prefix { $0.isASCII && $0.isLetter })
        let isName = word.count > 1 && word.first?.isUppercase == true && word.dropFirst().allSatisfy(\.isLowercase)
        let ends = next.isEmpty || (next.startIndex > after.startIndex && isName && !afterTimes.contains(word))
        return words.joined(separator: " ") + (!half.isEmpty && found.whole.hasSuffix(".") && ends ? "." : "")
    }

    private static func decade(_ found: Rule.Found) -> String {
        let number = found["decade"]
        return NumberNames.plural(number.count == 4 ? NumberNames.year(number) : NumberNames.cardinal(number))
    }

    private static func years(_ found: Rule.Found) -> String {
        let last = found["last"]
        let end = last.count > 2 ? NumberNames.year(last) : NumberNames.cardinal(last)
        return "\(NumberNames.year(found["year"])) to \(end)"
    }

    /// Applied before other rules consume the numbers.
    static func first(spelled: Bool) -> [Rule?] { [
        Rule(#"(?<=\d\d-\d\d)T(?=\d\d:\d\d)"#, " "),
        Rule(#"(?<![\w-])(?<year>\d{4})-(?<month>\d\d)-(?<day>\d\d)(?![\w-])"#, numeric),
        Rule(#"(?<![\w/])(?<month>\d{1,2})/(?<day>\d{1,2})/(?<year>\d{4}|\d\d)(?![\w/])"#, numeric),
        Rule(#"(?<![\w.])(?<day>\d{1,2})\.(?<month>\d{1,2})\.(?<year>\d{4})(?!\w|\.\d)"#, numeric),
        Rule(#"\b(?<article>\#(article) )?(?<![\d.,$£€-])\#(day) (?:of )?\#(month)(?:,? \#(year))?"#, dayFirst),
        Rule(#"(?<!\b[Ii]n )\b\#(month) \#(day)(?![\w:%]|[.,]\d)(?:,? \#(year))?"#, date),
        Rule(#"\b\#(month) \#(day),? \#(year)"#, date),
        Rule(#"\b\#(month),? \#(year)"#) { "\(name($0["month"])) \(NumberNames.year($0["year"]))" },
        Rule(#"(?<!\w)'?(?<decade>1\d\d0|20\d0|[2-9]0)'?s\b"#, decade),
        Rule(#"(?:(?<=\d[ap]m)|(?<=\d [ap]m)|(?<=[ap]\.m\.))\s?[–-]\s?(?=\d)"#, " to "),
        Rule(#"(?<=\d)\s?[–-]\s?(?=[01]?\d(?::[0-5]\d)?\s?[AaPp]\.?[Mm]\b)"#, " to "),
        Rule(#"(?<=\d:[0-5]\d)\s?[–-]\s?(?=\d{1,2}:[0-5]\d)"#, " to "),
        Rule(#"(?<![\w:.,])\#(hour):\#(minute)(?::(?<second>[0-5]\d))?(?:\s?\#(meridiem))?(?![\w:]|[.,]\d)"#) {
            time($0, spelled: spelled)
        },
        Rule(#"(?<![\w:.,$£€])\#(hour)\s?\#(meridiem)(?!\w)"#) { time($0, spelled: spelled) },
    ] }

    private static let lone = #"(?<![\w.,/:$£€^'-])"#
    private static let loneYear = #"(?<year>1\d{3}|20\d\d)(?![\w%]|[.,:/-]\d)"#
    private static let beforeYears = "(?:after|before|by|circa|during|from|in|since|till|until|year)"

    /// Applied after numbers with units.
    static let alone: [Rule?] = [
        Rule(#"\#(lone)(?<year>1\d{3}|20\d\d)\s?[–-]\s?(?<last>1\d{3}|20\d\d|\d\d)(?![\w%]|[.,-]\d)"#, years),
        Rule(#"\b(\#(beforeYears)\s)\#(loneYear)"#) { $0[1] + NumberNames.year($0["year"]) },
        // Before a plural it is a count: 1500 pages.
        Rule(#"\#(lone)\#(loneYear)(?!\s(?:people|[a-z]{4,20}s)\b)"#) { NumberNames.year($0["year"]) },
    ]
}
