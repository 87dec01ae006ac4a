//! Tokens: places in a log that readers wait for.
use std::{fmt, str::FromStr};

use crate::{config::Name, port::PortError};

/// A place in a log: all commits up to a number. Its text is `LOG@NUMBER`.
///
/// A reader that has seen the commit with this number has seen all that the token covers.
///
/// ```
/// use steadfast::event_sourcing::Token;
///
/// let token: Token = "conference@1042".parse().unwrap();
/// assert_eq!((token.log(), token.number()), ("conference", 1042));
/// assert_eq!(token.to_string(), "conference@1042");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Token {
    log: Name,
    number: u64,
}

impl Token {
    pub(super) const fn new(log: Name, number: u64) -> Self {
        Self { log, number }
    }

    /// Returns the name of the log.
    pub fn log(&self) -> &str {
        self.log.as_str()
    }

    /// Returns the number of the last commit that it covers; 0 for none.
    pub const fn number(&self) -> u64 {
        self.number
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.log, self.number)
    }
}

impl FromStr for Token {
    type Err = PortError;

    /// Parses the text of a token.
    fn from_str(text: &str) -> Result<Self, PortError> {
        let parts = text.rsplit_once('@').filter(|(log, _)| !log.is_empty());
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let parts = parts.filter(|(_, number)| is_number(number));
        let parsed = parts.and_then(|(log, number)| Some(Self::new(log.into(), number.parse().ok()?)));
        parsed.ok_or_else(|| PortError::invalid("token", format_args!("must be `LOG@NUMBER`, is {text:?}")))
    }
}
