import Foundation

/// Acronyms in words: a word in lower case, or the names of its letters.
enum Acronyms {
    private static let respelled = [
        "ASCII": "askey", "GUI": "gooey", "JPEG": "jay peg", "JPG": "jay peg", "JSON": "jason", "MPEG": "em peg",
        "SQL": "sequel", "PHD": "pee aitch dee", "OK": "okay", "USR": "user", "WWI": "world war one",
        "WWII": "world war two", "YAML": "yamel",
    ]
    private static let asWords = words("""
        AIDS ANOVA BIOS CAD CAPTCHA COVID DOS FAQ GIF GNU LAN LASER MERS MIDI NAFTA NASA NASDAQ NATO NORAD OPEC OSHA
        PIN RAM REM ROM SARS SCUBA SIM SONAR SWAT UNESCO UNICEF WAN ZIP
        """)
    private static let byLetter = words("""
        AAA ABC ACLU AI AKA API APR ASAP ATM BA BBC BIO CEO CIA DIY EDU EU EULA FBI GOV HIV ICU ID IEEE IO IOU IQ
        IRA IRS ISO ISP LA LED MIA MOU MRI NAACP NBA NYU OS PC PDF PO PR RIP SAT SOS TA TIA UAE UCLA UFO UI UN UPS
        URL USA USAF USB UX VIP YMCA
        """)
    private static let ambiguous = words("AM CAN IT US WHO")
    /// Short words that are often written in capitals.
    private static let short = words("""
        AGE AGO AIR ALL AN AND ANY ARE AS ASK AT ATE BAD BAG BE BED BET BIG BOX BOY BUS BUT BUY BY CAR CAT COP CRY
        CUP CUT DAD DAY DID DIE DO DOG DRY EAR EAT EGG END EYE FAR FAT FEW FLY FOR FUN GET GO GOD GOT GUN GUY HAD
        HAS HAT HE HER HEY HIM HIS HIT HOT HOW IF IN IS ITS JOB JOY KEY KID LAW LEG LET LIE LIP LOT LOW MAD MAN MAY
        ME MEN MOM MUM MY NEW NO NOR NOT NOW ODD OF OFF OH OLD ON ONE OR OUR OUT OWN PAY PEN PIG POT PUT RAW RED ROW
        RUN SAD SAY SEA SEE SET SHE SIT SIX SKY SO SON SUN TAX TEA TEN THE TIE TO TOO TOP TRY TWO UP USE WAR WAS WAY
        WE WET WHY WIN WON YES YET YOU
        """)

    private static func words(_ words: String) -> Set<String> {
        Set(words.split(whereSeparator: \.isWhitespace).map(String.init))
    }

    private static let sounds = try? NSRegularExpression(pattern: "^(?:[hm]+|[bg]r+|s+h+|pf+t*|ps+t+|ts+k+|z+|n?th)$")
    private static let sayable = try? NSRegularExpression(
        pattern: "^(?:(?:sch|scr|shr|spl|spr|squ|str|thr|ch?[lr]?|ph[lr]?|qu|rh|s[chklmnptw]|sh|t[hrw]|wh|wr|gh|gn|kn|"
            + "[bfgkp][lr]|d[rw]|[bcdfghjklmnprstvwxyz])?[aeiouy]{1,3}"
            + "(?:[bcdfghjklmnpqrstvwxz]{1,3}[aeiouy]{1,3})*"
            + "(?:[lmnr]?(?:[bcdfgkmnpstvxz]|th|sh|ch|ck|hn|ll|ss|ff|zz|st|ct|ft|pt|xt|sk|sp|ng|nk|ght|ngth|tch|ld|lth|"
            + "w|h|l|r)?s?))$",
        options: .caseInsensitive)

    private static func matches(_ pattern: NSRegularExpression?, _ word: String) -> Bool {
        pattern?.firstMatch(in: word, range: NSRange(location: 0, length: (word as NSString).length)) != nil
    }

    /// Sounds without vowels that are not acronyms: mhm, hmmm, shhh.
    static func isSound(_ word: String) -> Bool { matches(sounds, word) }

    /// capitals: A to Z. ending: "", "s" or "'s".
    static func said(_ capitals: String, _ ending: String) -> String {
        if let said = respelled[capitals] { return said + ending }
        if asWords.contains(capitals) { return capitals.lowercased() + ending }
        guard byLetter.contains(capitals) || !isWord(capitals) else { return capitals.lowercased() + ending }
        let names = NumberNames.letterByLetter(capitals)
        return ending == "s" ? NumberNames.plural(names) : names + ending
    }

    private static func isWord(_ capitals: String) -> Bool {
        if capitals.count <= 3 || ambiguous.contains(capitals) { return short.contains(capitals) }
        let isSayable = capitals.count <= 40 && matches(sayable, capitals)
        return isSayable || (capitals.count >= 6 && capitals.contains { "AEIOUY".contains($0) })
    }
}
