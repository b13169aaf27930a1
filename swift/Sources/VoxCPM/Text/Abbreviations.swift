/// Abbreviations before a dot, and words after it. Lower-case ones also match capitalised.
enum Abbreviations {
    /// These never end a sentence.
    static let neverLast = words("""
        cf dr e.g eg i.e ie mr mrs ms messrs prof viz vs
        """)
    /// These do not end one before a number.
    static let notBeforeNumbers = words("""
        apt art cor deut ed eph ex exod ezek gal heb isa jer jn lev lk mal matt max min n° no nos nr par pet
        prov ps rom rs sam tel thess tim
        """)
    /// These end a sentence only before one of `firstWords`, as do initials and other letters with dots.
    static let doubtful = words("""
        adm amb asst atty brig capt cdr cmdr col cpl cpt esq fr gen gov hon insp jr lt maj mme mlle msgr pres pvt rep
        rev sen sgt sr supt ave bldg blvd dept ft hwy mt rd st assn bros co corp inc llc ltd univ hr hrs lb
        lbs oz doz fl pkg pt qt rt rte sq tbsp tsp
        al approx ca ch chap cit eds eq eqs est etc ext fig figs misc p pg pp ref sec tel trans vol vols
        Calif Conn Fla Ill Mass Mich Minn Okla Tenn Tex Wash Wis
        Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec Mon Tue Tues Wed Thu Thur Thurs Fri Sat Sun
        """)
    /// Function words, which are not names: a capital means that a sentence begins.
    static let firstWords = words("""
        a an the this that these those my your his her its our their some any no every each all both many most such
        i he she we they you it there here what which who whom whose when where why how
        is are was were be do does did has have had can could should would must
        in on at by for from with without after before during since until while as if unless to into over under
        between through about against among and but or nor so yet because although though however then still also
        again now later today yesterday tomorrow perhaps maybe please let not only just once
        i'm i've i'd i'll he's she's it's we're they're you're that's there's let's what's who's don't didn't
        """)
    /// Where sentences begin in lower case, these more often continue a sentence than begin one.
    static let notFirstInLowerCase = words("""
        and or nor of in on at by for from with to into over under between through about against among as than
        is are was were be do does did has have had can could should would must also
        """)

    private static func words(_ words: String) -> Set<UTF8Text> {
        Set(words.split(whereSeparator: \.isWhitespace).map { UTF8Text(String($0)) })
    }
}
