//! Paths that every program reads in the same way.
use std::fmt;

/// Returns the path of a request, if no other program can take it for another path. Nothing is
/// normalised: two programs that do so differently disagree on what was asked for.
///
/// Refused are: a path that does not begin with `/`; `..`, and a segment `.`; `//`; `\` and `;`;
/// any character that is not printable ASCII; an escape that is incomplete, or that stands for a
/// control character, a slash, a backslash, `%`, `;`, or a letter, digit or mark that needs none;
/// and escapes that together are no UTF-8.
///
/// ```
/// use steadfast::http::strict_path;
///
/// assert!(strict_path("/orders/7%20b").is_ok());
/// for path in ["", "orders", "/a/../b", "/a//b", "/a/%2e%2E/b", "/a%2fb", "/a%5cb", "/a%00"] {
///     assert!(strict_path(path).is_err(), "{path}");
/// }
/// ```
///
/// # Errors
/// [`BadPath`], which does not contain the path.
pub fn strict_path(path: &str) -> Result<&str, BadPath> {
    let bytes = path.as_bytes();
    // Without an escape the decoded path is the path itself.
    let mut decoded = bytes.contains(&b'%').then(|| Vec::with_capacity(path.len()));
    let mut at = 0;
    if bytes.first() != Some(&b'/') {
        return Err(BadPath(()));
    }
    while let Some(byte) = bytes.get(at) {
        let next = bytes.get(at + 1);
        let is_fine = match byte {
            b'%' => {
                let digit = |at: usize| bytes.get(at).and_then(|byte| char::from(*byte).to_digit(16));
                let code = digit(at + 1).zip(digit(at + 2)).map(|(high, low)| high * 16 + low);
                at += 2;
                let code = code.and_then(|code| u8::try_from(code).ok()).unwrap_or_default();
                decoded.iter_mut().for_each(|decoded| decoded.push(code));
                // A second hop may decode once more. What needs no escape is the same path without it.
                !matches!(code, 0..=0x1f | 0x7f | b'%' | b'/' | b'\\' | b';' | b'-' | b'.' | b'_' | b'~')
                    && !code.is_ascii_alphanumeric()
            }
            b'/' => next != Some(&b'/') && !(next == Some(&b'.') && matches!(bytes.get(at + 2), None | Some(b'/'))),
            b'.' => next != Some(&b'.'),
            b'\\' | b'#' | b'?' | b';' => false,
            byte => byte.is_ascii_graphic(),
        };
        if !is_fine {
            return Err(BadPath(()));
        }
        if let Some(decoded) = decoded.as_mut().filter(|_| *byte != b'%') {
            decoded.push(*byte);
        }
        at += 1;
    }
    // Lenient decoders take an overlong form for the character.
    let is_text = decoded.is_none_or(|decoded| std::str::from_utf8(&decoded).is_ok());
    if is_text { Ok(path) } else { Err(BadPath(())) }
}

/// The error for a path that two programs might read differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadPath(());

impl fmt::Display for BadPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ambiguous path")
    }
}

impl std::error::Error for BadPath {}
