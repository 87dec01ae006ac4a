//! The errors of the attempts at a message.
use std::{fmt::Write as _, ops::Deref};

use crate::time::Timestamp;

/// Error of one failed attempt at a message.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AttemptError {
    /// Number of the attempt, starting at 1.
    pub attempt: u32,
    /// Wall-clock time of the failure.
    pub at: Timestamp,
    /// Kind of the failure.
    pub kind: AttemptErrorKind,
    /// Error text, of at most [`MAX_TEXT`](Self::MAX_TEXT) bytes.
    pub text: String,
}

/// Kind of a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AttemptErrorKind {
    /// The handler returned an error.
    Failed,
    /// The handler panicked.
    Panicked,
    /// The handler exceeded its time limit.
    TimedOut,
    /// The handler decided that the message cannot be handled.
    DeadLettered,
}

impl AttemptErrorKind {
    const ALL: [Self; 4] = [Self::Failed, Self::Panicked, Self::TimedOut, Self::DeadLettered];

    /// Returns the name of the kind, as backends store it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Panicked => "panicked",
            Self::TimedOut => "timed_out",
            Self::DeadLettered => "dead_lettered",
        }
    }
}

impl AttemptError {
    /// Maximum length of the text, in bytes. A longer one is cut at the end of a character.
    pub const MAX_TEXT: usize = 1024;

    /// Creates the error of an attempt. A text that is too long is cut.
    pub fn new(attempt: u32, at: Timestamp, kind: AttemptErrorKind, text: impl Into<String>) -> Self {
        let mut text = text.into();
        text.truncate(text.floor_char_boundary(Self::MAX_TEXT));
        Self { attempt, at, kind, text }
    }
}

/// Errors of the failed attempts at a message, oldest first: the first one, and the latest
/// [`LATEST`](Self::LATEST). Dereferences to a slice.
///
/// An attempt that ended without a settlement, as by a process that died, has no entry: its number
/// is missing. A released delivery is no attempt and has none either.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ErrorHistory(Option<Box<Entries>>);

/// Behind a pointer, so that a message without errors stays small.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Entries(Vec<AttemptError>);

impl ErrorHistory {
    /// Number of errors that are kept beside the first one.
    pub const LATEST: usize = 10;

    /// Adds the latest error, cut to [`AttemptError::MAX_TEXT`]. If there are too many, removes the
    /// oldest one but the first. For backends.
    pub fn push(&mut self, mut error: AttemptError) {
        error.text.truncate(error.text.floor_char_boundary(AttemptError::MAX_TEXT));
        let Entries(errors) = &mut **self.0.get_or_insert_default();
        if errors.len() > Self::LATEST {
            errors.remove(1);
        }
        errors.push(error);
    }

    /// Encodes the errors as text, or returns `None` if there are none. For backends.
    pub fn encode(&self) -> Option<String> {
        let Entries(errors) = &**self.0.as_ref()?;
        let mut all = String::new();
        for AttemptError { attempt, at, kind, text } in errors {
            // Writing to a `String` never fails.
            let _ = write!(all, "{attempt} {} {} {}:{text}", at.as_millis(), kind.as_str(), text.len());
        }
        Some(all)
    }

    /// Decodes the errors from the text of [`encode`](Self::encode). Ends at the first entry that
    /// it cannot read, as one of a kind that a later release added. For backends.
    pub fn decode(mut text: &str) -> Self {
        let mut next = || {
            let (head, rest) = text.split_once(':')?;
            let mut head = head.split(' ');
            let attempt = head.next()?.parse().ok()?;
            let at = Timestamp::from_millis(head.next()?.parse().ok()?);
            let kind = head.next()?;
            let kind = AttemptErrorKind::ALL.into_iter().find(|known| known.as_str() == kind)?;
            let (said, rest) = rest.split_at_checked(head.next()?.parse().ok()?)?;
            text = rest;
            Some(AttemptError::new(attempt, at, kind, said))
        };
        let mut errors = Self::default();
        while let Some(error) = next() {
            errors.push(error);
        }
        errors
    }
}

impl Deref for ErrorHistory {
    type Target = [AttemptError];

    fn deref(&self) -> &[AttemptError] {
        self.0.as_ref().map_or(&[], |entries| &entries.0)
    }
}

#[cfg(all(test, not(steadfast_loom)))]
mod tests {
    use super::*;

    fn error(attempt: u32, text: &str) -> AttemptError {
        AttemptError::new(attempt, Timestamp::from_millis(7), AttemptErrorKind::Failed, text)
    }

    #[test]
    fn the_first_error_and_the_latest_ten_are_kept() {
        let mut errors = ErrorHistory::default();
        (1..=30).for_each(|attempt| errors.push(error(attempt, "no")));
        let attempts: Vec<_> = errors.iter().map(|error| error.attempt).collect();
        assert_eq!(attempts, [1, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30]);
    }

    #[test]
    fn a_text_that_is_too_long_is_cut_at_the_end_of_a_character() {
        let mut errors = ErrorHistory::default();
        errors.push(AttemptError { text: "\u{1F600}".repeat(257) + "x", ..error(1, "") });
        errors.push(AttemptError { text: "x".to_owned() + &"\u{1F600}".repeat(256), ..error(2, "") });
        let lengths: Vec<_> = errors.iter().map(|error| error.text.len()).collect();
        assert_eq!(lengths, [1_024, 1_021]);
    }

    #[test]
    fn errors_of_any_text_are_decoded_as_they_were_encoded() {
        let mut errors = ErrorHistory::default();
        assert_eq!((errors.encode(), &ErrorHistory::decode("")), (None, &errors));
        for (attempt, text) in ["", "1 2 failed 3:", "\n:\u{0}", "\u{1F600}"].into_iter().enumerate() {
            errors.push(error(attempt as u32, text));
        }
        for kind in AttemptErrorKind::ALL {
            errors.push(AttemptError { kind, ..error(9, "x") });
        }
        assert_eq!(ErrorHistory::decode(&errors.encode().unwrap()), errors);
    }

    #[test]
    fn a_long_text_is_cut_at_the_end_of_a_character() {
        let cut = error(1, &"\u{20AC}".repeat(1000)).text;
        assert_eq!((cut.len(), cut.chars().all(|c| c == '\u{20AC}')), (1023, true));
    }
}
