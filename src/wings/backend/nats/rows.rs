//! Rows as tokens of subjects, so that a server finds a range of them.
//!
//! A server finds subjects by whole tokens. So a row begins with its first character, and with its
//! group: the text up to its first `/`. Rows that are a group and a number of fixed length have a
//! token for each digit, behind the number of digits without leading zeros.
//!
//! | row | tokens |
//! |---|---|
//! | `h` | `h.%.h` |
//! | `h/`, `h/a` | `h.h/.%`, `h.h/.a` |
//! | `e/0000000000000a42`, 16 hexadecimal digits | `e.e/.x.3.a.4.2` |
//! | `log/00000000000000000042`, 20 decimal digits | `l.log/.d.2.4.2` |
use std::ops::Bound;

use super::names::{text, token};
use crate::store::{Order, Rows, Scan};

/// The token of no text.
const NONE: &str = "%";

/// A form of numbers: all have the same length, so that their order is that of their texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Form {
    token: &'static str,
    base: u32,
    digits: u32,
}

/// Those of topics.
const HEXADECIMAL: Form = Form { token: "x", base: 16, digits: 16 };
/// Those of [sequences](crate::store::Sequence).
const DECIMAL: Form = Form { token: "d", base: 10, digits: 20 };
const FORMS: [Form; 2] = [HEXADECIMAL, DECIMAL];

impl Form {
    fn of(token: &str) -> Option<Self> {
        FORMS.into_iter().find(|form| form.token == token)
    }

    /// Returns the value of a digit. Capitals are none.
    fn digit(self, character: char) -> Option<u128> {
        if character.is_ascii_uppercase() { None } else { character.to_digit(self.base).map(u128::from) }
    }

    fn character(self, digit: u128) -> char {
        u32::try_from(digit).ok().and_then(|digit| char::from_digit(digit, self.base)).unwrap_or('0')
    }

    fn power(self, exponent: u32) -> u128 {
        u128::from(self.base).pow(exponent)
    }

    const fn last(self) -> u128 {
        (self.base as u128).pow(self.digits) - 1
    }

    fn parse(self, rest: &str) -> Option<u128> {
        let is_long = rest.len() == self.digits as usize;
        let add = |number: u128, character| Some(number * u128::from(self.base) + self.digit(character)?);
        is_long.then(|| rest.chars().try_fold(0, add)).flatten()
    }

    fn digits_of(self, number: u128, count: u32) -> impl Iterator<Item = char> {
        (0..count).rev().map(move |at| self.character(number / self.power(at) % u128::from(self.base)))
    }

    fn write(self, number: u128) -> String {
        self.digits_of(number, self.digits).collect()
    }

    /// Returns the number of digits without leading zeros.
    fn count(self, number: u128) -> u32 {
        (0..self.digits).rev().find(|at| number >= self.power(*at)).map_or(0, |at| at + 1)
    }

    /// Returns the tokens of the first `count` digits of a number of `length` digits.
    fn tokens(self, length: u32, number: u128, count: u32) -> String {
        let mut tokens = format!("{}.{length}", self.token);
        for digit in self.digits_of(number, count) {
            tokens.extend(['.', digit]);
        }
        tokens
    }

    /// Returns the lowest number whose text is not below this one, or is above it.
    fn lowest(self, than: &str, is_above: bool) -> u128 {
        let (mut number, mut left) = (0, self.digits);
        for character in than.chars() {
            if left == 0 {
                // The text of the number is the beginning of the other one.
                return number + 1;
            }
            let Some(digit) = self.digit(character) else {
                let higher = (0..u128::from(self.base)).find(|digit| self.character(*digit) > character);
                let next = number * u128::from(self.base) + higher.unwrap_or(u128::from(self.base));
                return next * self.power(left - 1);
            };
            (number, left) = (number * u128::from(self.base) + digit, left - 1);
        }
        number * self.power(left) + u128::from(left == 0 && is_above)
    }

    /// Returns the first and the last number between two bounds of their texts.
    fn range(self, from: &Bound<String>, to: &Bound<String>) -> Option<(u128, u128)> {
        let first = match from {
            Bound::Unbounded => 0,
            Bound::Included(from) => self.lowest(from, false),
            Bound::Excluded(from) => self.lowest(from, true),
        };
        let behind = match to {
            Bound::Unbounded => self.last() + 1,
            Bound::Included(to) => self.lowest(to, true),
            Bound::Excluded(to) => self.lowest(to, false),
        };
        let last = behind.min(self.last() + 1).checked_sub(1)?;
        (first <= last).then_some((first, last))
    }

    /// Adds filters that match these numbers, and no others.
    fn filter(self, (from, to): (u128, u128), mut add: impl FnMut(String)) {
        if (from, to) == (0, self.last()) {
            return add(format!("{}.>", self.token));
        }
        if from == 0 {
            add(self.tokens(0, 0, 0));
        }
        for length in 1..=self.digits {
            let all = (self.power(length - 1), self.power(length) - 1);
            let (mut next, to) = (from.max(all.0), to.min(all.1));
            if (next, to) == all {
                add(format!("{}.{length}.>", self.token));
                continue;
            }
            while next <= to {
                // The largest block of numbers with a common beginning.
                let fits = |free: &u32| {
                    let size = self.power(*free);
                    next.is_multiple_of(size) && next + size - 1 <= to
                };
                let free = (1..length).take_while(fits).last().unwrap_or(0);
                let size = self.power(free);
                let tokens = self.tokens(length, next / size, length - free);
                add(if free == 0 { tokens } else { format!("{tokens}.>") });
                next += size;
            }
        }
    }
}

/// Returns the tokens of a row.
pub(super) fn tokens(row: &str) -> String {
    let (group, rest) = split(row);
    let mut tokens = format!("{}.", first(row));
    tokens.push_str(&if group.is_empty() { NONE.to_owned() } else { token(group) });
    tokens.push('.');
    let number = |form: Form| Some((form, form.parse(rest)?));
    match FORMS.into_iter().filter(|_| !group.is_empty()).find_map(number) {
        Some((form, number)) => {
            let length = form.count(number);
            tokens.push_str(&form.tokens(length, number, length));
        }
        None if rest.is_empty() => tokens.push_str(NONE),
        None => tokens.push_str(&token(rest)),
    }
    tokens
}

/// Returns the row of these tokens; `None` if they are of no row.
pub(super) fn row(tokens: &str) -> Option<String> {
    let part = |token: &str| if token == NONE { Some(String::new()) } else { text(token) };
    let mut all = tokens.split('.').skip(1);
    let (mut row, kind) = (part(all.next()?)?, all.next()?);
    if let Some(length) = all.next() {
        let form = Form::of(kind)?;
        let zeros = form.digits.checked_sub(length.parse().ok()?)?;
        row.extend((0..zeros).map(|_| '0'));
        row.extend(all);
    } else {
        row.push_str(&part(kind)?);
    }
    Some(row)
}

fn first(row: &str) -> String {
    row.chars().next().map_or_else(|| NONE.to_owned(), |first| token(first.encode_utf8(&mut [0; 4])))
}

/// Returns the group of a row, and the rest.
fn split(row: &str) -> (&str, &str) {
    row.split_at(row.find('/').map_or(0, |at| at + 1))
}

/// Tokens that are common to all rows of a scan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Area {
    All,
    /// Rows that begin with the same character.
    First(String),
    Group(Group),
}

/// A range of rows of one group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Group {
    name: String,
    /// Bounds of the rows, without the group.
    range: (Bound<String>, Bound<String>),
    order: Order,
    /// The form of numbers by which the range is divided.
    form: Form,
    /// The scan begins at a number.
    pub(super) is_numbered: bool,
}

impl Area {
    pub(super) fn of(scan: &Scan) -> Self {
        let (from, to) = scan.bounds();
        let (low, high) = (value(&from).copied().unwrap_or_default(), value(&to).map_or("", String::as_str));
        let common = match &scan.rows {
            Rows::Prefix(prefix) => prefix,
            _ => {
                let same = low.chars().zip(high.chars()).take_while(|(one, other)| one == other);
                &low[..same.map(|(one, _)| one.len_utf8()).sum()]
            }
        };
        let name = split(common).0;
        if common.is_empty() {
            return Self::All;
        }
        if name.is_empty() {
            return Self::First(first(common));
        }
        let start = if scan.order == Order::Ascending { low } else { high };
        let rest = start.strip_prefix(name).unwrap_or_default();
        let form = FORMS.into_iter().find(|form| form.parse(rest).is_some());
        let from = within(name, from, |bound| bound < name, HIGHEST);
        let to = within(name, to.as_ref().map(String::as_str), |bound| bound > name, "");
        Self::Group(Group {
            name: name.to_owned(),
            range: (from, to),
            order: scan.order,
            // The longer one divides the numbers of the other, too.
            form: form.unwrap_or(DECIMAL),
            is_numbered: form.is_some(),
        })
    }

    /// Returns the filter that matches all rows of the area.
    pub(super) fn filter(&self) -> String {
        match self {
            Self::All => ">".to_owned(),
            Self::First(first) => format!("{first}.>"),
            Self::Group(group) => format!("{}.>", group.tokens()),
        }
    }
}

fn value<T>(bound: &Bound<T>) -> Option<&T> {
    match bound {
        Bound::Included(value) | Bound::Excluded(value) => Some(value),
        Bound::Unbounded => None,
    }
}

/// A text behind those of all numbers.
const HIGHEST: &str = "\u{10ffff}";

/// Returns the bound without the group. One outside the group, of the token of another scan, bounds
/// nothing, or leaves nothing, as `end` does.
fn within(group: &str, bound: Bound<&str>, bounds_nothing: impl Fn(&str) -> bool, end: &str) -> Bound<String> {
    let rest = |bound: &str| bound.strip_prefix(group).map(str::to_owned);
    let outside = |bound: &str| if bounds_nothing(bound) { Bound::Unbounded } else { Bound::Excluded(end.to_owned()) };
    match bound {
        Bound::Included(bound) => rest(bound).map_or_else(|| outside(bound), Bound::Included),
        Bound::Excluded(bound) => rest(bound).map_or_else(|| outside(bound), Bound::Excluded),
        Bound::Unbounded => Bound::Unbounded,
    }
}

impl Group {
    fn tokens(&self) -> String {
        format!("{}.{}", first(&self.name), token(&self.name))
    }

    /// Returns filters that match the first `span` numbers of the range, and all other rows of the
    /// group; and the row up to which they match all of the range, if there are more numbers.
    pub(super) fn filters(&self, span: Option<u128>) -> (Vec<String>, Option<String>) {
        let (mut from, mut to) = self.range.clone();
        let more = span.map(|span| span.saturating_sub(1));
        let cut = self.form.range(&from, &to).zip(more).and_then(|((first, last), more)| {
            let cut = if self.order == Order::Ascending { first + more } else { last.saturating_sub(more) };
            (last - first > more).then(|| self.form.write(cut))
        });
        if let Some(cut) = &cut {
            match self.order {
                Order::Ascending => to = Bound::Included(cut.clone()),
                Order::Descending => from = Bound::Included(cut.clone()),
            }
        }
        let group = self.tokens();
        let mut filters = vec![format!("{group}.*")];
        for form in FORMS {
            // A group has numbers of one form as a rule: those of the other one are not told apart at first.
            let is_other = span.is_none() && self.is_numbered && form != self.form;
            let numbers = if is_other { Some((0, form.last())) } else { form.range(&from, &to) };
            if let Some(numbers) = numbers {
                form.filter(numbers, |tokens| filters.push(format!("{group}.{tokens}")));
            }
        }
        (filters, cut.map(|cut| format!("{}{cut}", self.name)))
    }
}

/// Growth of a stride that finds nothing.
const GROWTH: u128 = 16;

/// The search for so many numbers that their rows fill a page.
#[derive(Debug)]
pub(super) struct Stride {
    limit: u128,
    /// Numbers to be read next; `None` is all.
    pub(super) span: Option<u128>,
    /// The most that were too few, and their rows.
    few: Option<(u128, u128)>,
    /// The fewest that were too many.
    many: Option<u128>,
    has_tried_all: bool,
}

impl Stride {
    pub(super) fn new(limit: usize, group: &Group) -> Self {
        let limit = limit as u128;
        // Only one row has a number, so that these are not too many. One more tells whether there are more.
        let span = group.is_numbered.then_some(limit + 1);
        // Behind the last rows is nothing, but before the first ones that remain is much.
        let has_tried_all = !group.is_numbered || group.order == Order::Descending;
        Self { limit, span, few: None, many: None, has_tried_all }
    }

    /// Chooses another span after too few rows, or too many: `None`. Returns `false` if none would
    /// do better.
    pub(super) fn advance(&mut self, found: Option<usize>) -> bool {
        match (found, self.span) {
            (Some(rows), Some(span)) => self.few = Some((span, rows as u128)),
            (None, Some(span)) => self.many = Some(span),
            (_, None) => {}
        }
        self.span = match self.few {
            Some(_) if !self.has_tried_all => {
                self.has_tried_all = true;
                None
            }
            Some((few, rows)) => {
                let needed = (few * self.limit * 3 / 2).checked_div(rows).unwrap_or(few * GROWTH);
                let next = needed.clamp(few * 2, few * GROWTH);
                match self.many {
                    Some(many) if many <= few * 2 => return false,
                    Some(many) if many <= next => Some(few + few.max((many - few) / 8)),
                    _ => Some(next),
                }
            }
            None => match self.many {
                Some(1) => return false,
                Some(many) => Some((many / 4).max(1)),
                None => Some(self.limit + 1),
            },
        };
        true
    }
}

#[cfg(all(test, not(steadfast_loom)))]
mod tests;
