//! The error of an invalid cron expression: what is wrong, and at which character.
//!
//! The parser says what is wrong but not where. So each piece is parsed alone, with `*` in every other field: the first piece
//! that the parser refuses is the one to point at. The parser also accepts a month for a minute (`JAN` is 1 in any field) and
//! ignores an extra comma; both are errors here.

use tenure::{Error, Result};

use super::cron::parse;

/// A field, the values it accepts, and the words it accepts.
const FIELDS: [(&str, &str, &[&str]); 6] = [
    ("second", "0-59", &[]),
    ("minute", "0-59", &[]),
    ("hour", "0-23", &[]),
    (
        "day of month",
        "1-31, L for the last, 15W for the weekday nearest to the 15th",
        &["L", "W", "LW"],
    ),
    (
        "month",
        "1-12 or JAN-DEC",
        &["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"],
    ),
    (
        "day of week",
        "0-7 or SUN-SAT, 5#3 for the third Friday, 5L for the last",
        &["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT", "L"],
    ),
];

const EXPECTED: &str = "minute, hour, day of month, month and day of week, like '0 2 * * *'";

/// A piece of the expression, and the byte at which it begins.
#[derive(Clone, Copy)]
struct CronField<'a> {
    text: &'a str,
    at: usize,
}

/// Parses an expression, or says in one sentence what is wrong with it.
pub(super) fn parse_strictly(expression: &str) -> Result<croner::Cron> {
    let (at, what) = match (first_mistake(expression), parse(expression)) {
        (None, Some(pattern)) => return Ok(pattern),
        (Some(mistake), _) => mistake,
        (None, None) => (0, format!("expected {EXPECTED}")),
    };
    let column = expression.get(..at).map_or(0, |before| before.chars().count()) + 1;
    let shown = expression.escape_debug();
    Err(Error::invalid(format!("--cron '{shown}', character {column}: {what}")))
}

/// The position of the first mistake in bytes, and its description.
fn first_mistake(expression: &str) -> Option<(usize, String)> {
    let fields = fields(expression);
    if let [only] = fields[..]
        && only.text.starts_with('@')
    {
        let names = "@hourly, @daily, @weekly, @monthly or @yearly";
        let sentence = format!("expected {names}, or five fields like '0 2 * * *'");
        return parse(expression).is_none().then_some((only.at, sentence));
    }
    // Six fields have the second in front. Fewer than five are read as the first of five.
    let first = usize::from(fields.len() < FIELDS.len());
    for (number, field) in fields.iter().enumerate().take(FIELDS.len() - first) {
        if let Some(piece) = invalid_part(*field, number + first) {
            let (name, values, _) = FIELDS[number + first];
            let text = piece.text.escape_debug();
            let reason = if text.to_string().is_empty() {
                format!("a piece of the {name} is missing")
            } else {
                format!("'{text}' is no {name}")
            };
            let more = "*, a list 1,5, a range 1-5 or steps */5";
            return Some((piece.at, format!("{reason}: expected {values}, or {more}")));
        }
    }
    if let Some(surplus) = fields.get(FIELDS.len()) {
        let expected = "expected five, or six with the second in front";
        return Some((surplus.at, format!("one field too many: {expected}")));
    }
    // With five or six fields none is missing.
    let (missing, ..) = FIELDS.get(fields.len() + 1)?;
    Some((expression.trim_end().len(), format!("the {missing} is missing: expected {EXPECTED}")))
}

fn fields(expression: &str) -> Vec<CronField<'_>> {
    let mut fields = split(CronField { text: expression, at: 0 }, char::is_whitespace);
    fields.retain(|piece| !piece.text.is_empty());
    fields
}

/// The smallest part of a field that makes it invalid; `None` if the field is valid.
fn invalid_part(field: CronField<'_>, number: usize) -> Option<CronField<'_>> {
    let accepts = |text: &str| {
        // A space would make two fields of it; no piece contains one.
        let mut all = ["*"; FIELDS.len()];
        all[number] = text;
        known_words(text, number)
            && text.split(',').all(|item| !item.is_empty())
            && parse(&all.join(" ")).is_some()
    };
    if accepts(field.text) {
        return None;
    }
    let items = split(field, |c| c == ',');
    let Some(item) = items.into_iter().find(|item| !accepts(item.text)) else {
        return Some(field);
    };
    let (range, step) = match item.text.find('/') {
        Some(slash) => (item.to(slash), Some(item.from(slash + 1))),
        None => (item, None),
    };
    // If both ends of a range are valid, the range itself is wrong.
    if !accepts(range.text) {
        let end = split(range, |c| c == '-').into_iter().find(|end| !accepts(end.text));
        return Some(end.unwrap_or(range));
    }
    Some(step.unwrap_or(item))
}

fn known_words(text: &str, number: usize) -> bool {
    let (_, _, words) = FIELDS[number];
    let known = |word: &str| words.iter().any(|known| word.eq_ignore_ascii_case(known));
    let mut found = text.split(|c: char| !c.is_ascii_alphabetic()).filter(|word| !word.is_empty());
    // `FRIL` is the last Friday.
    found.all(|word| known(word) || word.strip_suffix(['L', 'l']).is_some_and(known))
}

impl<'a> CronField<'a> {
    fn to(self, end: usize) -> CronField<'a> {
        CronField { text: &self.text[..end], at: self.at }
    }

    fn from(self, start: usize) -> CronField<'a> {
        CronField { text: &self.text[start..], at: self.at + start }
    }
}

/// The pieces between the separators, each with its position.
fn split(piece: CronField<'_>, separator: impl Fn(char) -> bool) -> Vec<CronField<'_>> {
    let mut pieces = Vec::new();
    let mut start = 0;
    for (at, c) in piece.text.char_indices().filter(|(_, c)| separator(*c)) {
        pieces.push(piece.to(at).from(start));
        start = at + c.len_utf8();
    }
    pieces.push(piece.from(start));
    pieces
}
