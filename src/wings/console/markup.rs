//! A writer of HTML that escapes everything but literals of this crate.
//!
//! Names of elements and attributes, and markup as it stands, are `&'static str`: text that comes
//! from outside has no way into the page but [`text`](Markup::text) and the values of attributes,
//! which are escaped.

use serde::Serialize;

/// A page, or a part of one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct Markup(String);

/// Attributes of an element, each with its value.
pub(super) type Attributes<'a> = &'a [(&'static str, &'a str)];

impl Markup {
    /// Writes markup as it stands.
    pub(super) fn raw(&mut self, markup: &'static str) {
        self.0.push_str(markup);
    }

    /// Writes another part.
    pub(super) fn append(&mut self, part: &Self) {
        self.0.push_str(&part.0);
    }

    /// Writes text, [plain] and escaped.
    pub(super) fn text(&mut self, text: &str) {
        for c in text.chars().map(shown) {
            match c {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                c => self.0.push(c),
            }
        }
    }

    /// Writes the opening tag of an element, which is not closed: of a void one.
    pub(super) fn tag(&mut self, name: &'static str, attributes: Attributes<'_>) {
        self.0.push('<');
        self.0.push_str(name);
        for (attribute, value) in attributes {
            self.0.push(' ');
            self.0.push_str(attribute);
            self.0.push_str("=\"");
            self.text(value);
            self.0.push('"');
        }
        self.0.push('>');
    }

    /// Writes an element with its content.
    pub(super) fn element(&mut self, name: &'static str, attributes: Attributes<'_>, content: impl FnOnce(&mut Self)) {
        self.tag(name, attributes);
        content(self);
        self.0.push_str("</");
        self.0.push_str(name);
        self.0.push('>');
    }

    /// Writes an element that contains text alone.
    pub(super) fn line(&mut self, name: &'static str, attributes: Attributes<'_>, text: &str) {
        self.element(name, attributes, |markup| markup.text(text));
    }

    pub(super) fn into_string(self) -> String {
        self.0
    }
}

/// Returns text as a page shows it.
///
/// Control characters, and those that change the direction of the text around them, are replaced:
/// a name must not look like another one.
pub(super) fn plain(text: &str) -> String {
    text.chars().map(shown).collect()
}

/// Returns `true` if a page shows this character as it is.
pub(super) fn is_shown(c: char) -> bool {
    shown(c) == c
}

fn shown(c: char) -> char {
    match c {
        '\n' | '\t' => c,
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => char::REPLACEMENT_CHARACTER,
        c if c.is_control() => char::REPLACEMENT_CHARACTER,
        c => c,
    }
}

/// Returns text as a part of a query, percent-encoded.
pub(super) fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
            encoded.push('%');
            encoded.push(char::from(DIGITS[usize::from(byte >> 4)]));
            encoded.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
    }
    encoded
}

/// Fields of a query or of a form, decoded. Text that is not valid UTF-8 is replaced.
#[derive(Debug, Default)]
pub(super) struct Fields(Vec<(String, String)>);

impl Fields {
    pub(super) fn parse(text: &str) -> Self {
        let pair = |pair: &str| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decoded(name), decoded(value))
        };
        Self(text.split('&').filter(|text| !text.is_empty()).map(pair).collect())
    }

    /// Returns the value of a field; empty if it is missing.
    pub(super) fn get(&self, name: &str) -> &str {
        self.find(name).unwrap_or_default()
    }

    /// Returns the values of all fields, in their order.
    pub(super) fn values(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(_, value)| value.as_str())
    }

    pub(super) fn find(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str())
    }
}

fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let digit = |at: usize| bytes.get(at).and_then(|byte| char::from(*byte).to_digit(16));
        at += 1;
        match (byte, digit(at), digit(at + 1)) {
            (b'+', ..) => decoded.push(b' '),
            (b'%', Some(high), Some(low)) => {
                decoded.push((high << 4 | low) as u8);
                at += 2;
            }
            (byte, ..) => decoded.push(*byte),
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}
