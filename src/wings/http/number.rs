//! Parsers of untrusted numbers: they neither panic nor wrap.
use std::time::Duration;

use http::{HeaderMap, HeaderName};

/// Reads a multiple of `unit`, with or without a fraction; saturates at 584 years. Signs and
/// exponents are refused.
pub(super) fn time(text: &str, unit: Duration) -> Option<Duration> {
    let (whole, fraction) = match text.split_once('.') {
        Some((whole, fraction)) => (whole, fraction),
        None => (text, "0"),
    };
    let whole = natural(whole)?;
    natural(fraction)?; // all digits
    let unit = u64::try_from(unit.as_nanos()).ok()?;
    // Beyond the ninth digit a fraction of a second is less than a nanosecond.
    let digits = &fraction[..fraction.len().min(9)];
    let part = natural(digits)?.saturating_mul(unit) / 10_u64.pow(u32::try_from(digits.len()).ok()?);
    Some(Duration::from_nanos(whole.saturating_mul(unit).saturating_add(part)))
}

/// Reads a number that consists of digits; saturates at the maximum.
pub(super) fn natural(text: &str) -> Option<u64> {
    let digit =
        |sum: u64, c: u8| c.is_ascii_digit().then(|| sum.saturating_mul(10).saturating_add(u64::from(c - b'0')));
    if text.is_empty() { None } else { text.bytes().try_fold(0, digit) }
}

/// Returns all values of a header that are text.
pub(super) fn texts<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).map(str::trim)
}

/// Splits a text at each `by` outside of quotes.
pub(super) fn split(text: &str, by: char) -> impl Iterator<Item = &str> {
    let (mut quoted, mut escaped) = (false, false);
    text.split(move |c: char| {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            _ => return c == by && !quoted,
        }
        false
    })
    .map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_is_not_wholly_a_number_is_refused() {
        let seconds = |text| time(text, Duration::from_secs(1));
        assert_eq!(seconds("7"), Some(Duration::from_secs(7)));
        assert_eq!(seconds("1.5"), Some(Duration::from_millis(1500)));
        assert_eq!(seconds("0.0000000019"), Some(Duration::from_nanos(1)));
        assert_eq!(seconds("18446744073709551616"), Some(Duration::from_nanos(u64::MAX)));
        assert_eq!(time("2.5", Duration::from_millis(1)), Some(Duration::from_micros(2500)));
        for garbage in ["", ".", "-1", "+1", "1e9", "1.", ".5", "1.5.5", "NaN", "٣", "1 2"] {
            assert_eq!(seconds(garbage), None, "{garbage}");
        }
    }

    #[test]
    fn quoted_text_is_not_split() {
        assert_eq!(split(r#""a,\"b",c , "d"#, ',').collect::<Vec<_>>(), [r#""a,\"b""#, "c", r#""d"#]);
    }
}
