//! Messages of a queue as a stream holds them: the body and the headers as the user gave them.
use std::collections::BTreeMap;

use async_nats::HeaderMap;

use super::record::Record;
use crate::{backend::nats::api::MESSAGE_ID, queue::Message};

/// Header of a message whose names and values of headers are escaped, because one of them cannot be
/// written as it is.
const ESCAPED: &str = "Steadfast-Escaped";
/// Headers of a dead letter: the number of its message, the time of acceptance in nanoseconds since
/// 1970, the reason, the counts and the errors. All but the counts are escaped.
pub(super) const NUMBER: &str = "Steadfast-Number";
pub(super) const ACCEPTED: &str = "Steadfast-Accepted";
pub(super) const REASON: &str = "Steadfast-Reason";
pub(super) const COUNTS: &str = "Steadfast-Counts";
pub(super) const ERRORS: &str = "Steadfast-Errors";

/// Returns `true` for the name of a header that no user's message has.
fn is_reserved(name: &str) -> bool {
    let begins = |with: &str| name.get(..with.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(with));
    begins("nats-") || begins("steadfast-")
}

fn is_plain_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| matches!(byte, b'!'..=b'~') && byte != b':') && !is_reserved(name)
}

fn is_plain_value(value: &str) -> bool {
    value.trim() == value && !value.chars().any(char::is_control)
}

fn push_escaped(to: &mut String, byte: u8) {
    to.push('%');
    to.extend([byte >> 4, byte & 15].map(|digit| char::from(b"0123456789ABCDEF"[usize::from(digit)])));
}

/// Returns a text that a header can have as its value.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    let (begin, end) = (text.len() - text.trim_start().len(), text.trim_end().len());
    let mut buffer = [0; 4];
    for (at, c) in text.char_indices() {
        if c == '%' || c.is_control() || at < begin || at >= end {
            c.encode_utf8(&mut buffer).bytes().for_each(|byte| push_escaped(&mut escaped, byte));
        } else {
            escaped.push(c);
        }
    }
    escaped
}

/// Returns a text that can be the name of a header.
fn escape_name(name: &str) -> String {
    if name.is_empty() {
        return "%".to_owned();
    }
    let mut escaped = String::with_capacity(name.len());
    for (at, byte) in name.bytes().enumerate() {
        if matches!(byte, b'!'..=b'~') && byte != b':' && byte != b'%' && !(at == 0 && is_reserved(name)) {
            escaped.push(char::from(byte));
        } else {
            push_escaped(&mut escaped, byte);
        }
    }
    escaped
}

/// Returns the text that was escaped. What is no escape stays as it is.
pub(super) fn unescape(text: &str) -> String {
    if text == "%" {
        return String::new();
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        let digits = behind.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) if *first == b'%' => {
                bytes.push(byte);
                rest = &behind[2..];
            }
            _ => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns the headers of a message.
pub(super) fn headers_of(message: &Message, id: Option<&str>) -> HeaderMap {
    let mut headers = user_headers(&message.headers);
    if let Some(id) = id {
        headers.insert(MESSAGE_ID, escape(id).as_str());
    }
    headers
}

/// Returns the size of headers as the server counts it.
pub(super) fn size(headers: &HeaderMap) -> usize {
    const FIRST_AND_LAST: usize = "NATS/1.0\r\n\r\n".len();
    let one = |(name, values): (&async_nats::HeaderName, &Vec<async_nats::HeaderValue>)| {
        let name: &str = name.as_ref();
        values.iter().map(|value| name.len() + value.as_str().len() + ": \r\n".len()).sum::<usize>()
    };
    FIRST_AND_LAST + headers.iter().map(one).sum::<usize>()
}

/// Returns these headers as they are stored.
pub(super) fn user_headers(user: &BTreeMap<String, String>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if user.iter().all(|(name, value)| is_plain_name(name) && is_plain_value(value)) {
        user.iter().for_each(|(name, value)| headers.insert(name.as_str(), value.as_str()));
    } else {
        headers.insert(ESCAPED, "1");
        user.iter().for_each(|(name, value)| headers.insert(escape_name(name).as_str(), escape(value).as_str()));
    }
    headers
}

/// The headers of a stored message.
#[derive(Debug, Default)]
pub(super) struct Parts {
    pub(super) headers: BTreeMap<String, String>,
    pub(super) deduplication_id: Option<String>,
    /// Number of the message that became this dead letter.
    pub(super) number: Option<u64>,
    /// Time of its acceptance, in nanoseconds since 1970.
    pub(super) accepted: Option<u64>,
    pub(super) reason: Option<String>,
    /// Its earlier deliveries, as far as they are known.
    pub(super) record: Option<Record>,
}

impl Parts {
    pub(super) fn of<'a>(stored: impl Iterator<Item = (&'a str, &'a str)> + Clone) -> Self {
        let find = |wanted: &str| stored.clone().find_map(|(name, value)| (name == wanted).then_some(value));
        let is_escaped = find(ESCAPED).is_some();
        let text = |text: &str| if is_escaped { unescape(text) } else { text.to_owned() };
        let user = stored.clone().filter(|(name, _)| !is_reserved(name));
        let errors = find(ERRORS).map(unescape);
        Self {
            headers: user.map(|(name, value)| (text(name), text(value))).collect(),
            deduplication_id: find(MESSAGE_ID).map(unescape),
            number: find(NUMBER).and_then(|number| number.parse().ok()),
            accepted: find(ACCEPTED).and_then(|accepted| accepted.parse().ok()),
            reason: find(REASON).map(unescape),
            record: find(COUNTS).and_then(|counts| Record::of_dead_letter(counts, errors)),
        }
    }

    pub(super) fn of_map(headers: Option<&HeaderMap>) -> Self {
        let all = headers.into_iter().flat_map(|headers| headers.iter());
        let first: Vec<_> = all.filter_map(|(name, values)| Some((name.as_ref(), values.first()?.as_str()))).collect();
        Self::of(first.into_iter())
    }

    pub(super) fn of_list(headers: &[(String, String)]) -> Self {
        Self::of(headers.iter().map(|(name, value)| (name.as_str(), value.as_str())))
    }
}

#[cfg(all(test, not(steadfast_loom)))]
mod tests {
    use super::*;

    const ODD: [&str; 14] = [
        "",
        "a b",
        "%",
        "%41",
        "\u{0}",
        "日本 \u{10ffff}",
        "\"\n\t",
        " x ",
        "Nats-Msg-Id",
        "nats-x",
        "a:b",
        "\u{85}",
        "\r\n",
        "Steadfast-Reason",
    ];

    #[test]
    fn headers_of_any_text_come_back() {
        let all: BTreeMap<String, String> = ODD.iter().map(|text| ((*text).to_owned(), (*text).to_owned())).collect();
        let stored = user_headers(&all);
        assert_eq!(Parts::of_map(Some(&stored)).headers, all);
        for (name, values) in stored.iter() {
            let name: &str = name.as_ref();
            assert!(is_plain_name(name) || name == ESCAPED, "{name:?}");
            assert!(values.iter().all(|value| is_plain_value(value.as_str())), "{values:?}");
        }
    }

    #[test]
    fn plain_headers_are_stored_as_they_are() {
        let user = [("Content-Type", "text/plain"), ("share", "100%41 of it"), ("empty", "")];
        let user: BTreeMap<String, String> = user.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let stored = user_headers(&user);
        for (name, value) in &user {
            assert_eq!(stored.get(name.as_str()).map(|value| value.as_str()), Some(value.as_str()));
        }
        assert_eq!((stored.len(), Parts::of_map(Some(&stored)).headers), (3, user));
    }
}
