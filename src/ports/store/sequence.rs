//! Sequences: rows with dense numbers.
use std::fmt;

use super::{Rows, StoreError, Version};
use crate::port::{Capabilities, Capability, PortError, PortErrorKind};

/// The name of a sequence within its partition. Its rows are that name and 20 digits, so that their
/// order is that of the numbers.
///
/// ```
/// use steadfast::store::Sequence;
///
/// let mails = Sequence::new("mails/");
/// assert_eq!(mails.row(7), "mails/00000000000000000007");
/// assert_eq!(mails.number("mails/00000000000000000007"), Some(7));
/// assert_eq!(mails.number("mails/1/00000000000000000007"), None);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sequence<'a>(&'a str);

/// Number of digits of each row: those of the largest `u64`.
const DIGITS: usize = 20;

impl<'a> Sequence<'a> {
    /// The highest number: 2^63 - 1, because most engines count with signs.
    pub const LAST: u64 = i64::MAX as u64;

    /// Creates the name of a sequence. The store checks it: it is not empty and does not end with a
    /// digit, and with the 20 digits it is at most
    /// [`max_key`](crate::port::Capabilities::max_key) bytes long.
    pub const fn new(name: &'a str) -> Self {
        Self(name)
    }

    /// Returns the name.
    pub const fn as_str(self) -> &'a str {
        self.0
    }

    /// Returns the row key of this number.
    pub fn row(self, number: u64) -> String {
        format!("{}{number:0DIGITS$}", self.0)
    }

    /// Returns the number of a row, or `None` if the row does not belong to the sequence.
    pub fn number(self, row: &str) -> Option<u64> {
        let digits = row.strip_prefix(self.0).filter(|digits| is_number(digits.as_bytes()))?;
        digits.parse().ok()
    }

    /// Returns the lowest and the highest row key of the form of its rows. For backends.
    pub fn bounds(self) -> (String, String) {
        (self.row(0), format!("{}{}", self.0, "9".repeat(DIGITS)))
    }

    /// Returns the range of all rows whose numbers are above `after`. Rows of other names may lie
    /// between them if they begin with this name and a digit; [`number`](Self::number) tells.
    pub fn rows_after(self, after: u64) -> Rows {
        use std::ops::Bound::{Excluded, Included};
        Rows::Range(Excluded(self.row(after)), Included(self.row(u64::MAX)))
    }

    /// Returns the sequence to which a row would belong: the text before its last 20 bytes, if
    /// these are digits and that is a valid name. For backends.
    pub fn of_row(row: &'a str) -> Option<Self> {
        let (name, digits) = row.split_at_checked(row.len().checked_sub(DIGITS)?)?;
        let valid = name.bytes().last().is_some_and(|last| !last.is_ascii_digit());
        (valid && is_number(digits.as_bytes())).then_some(Self(name))
    }

    /// Rejects a name that violates a rule of all backends, or a limit of this one. For backends.
    ///
    /// # Errors
    /// `Unsupported` without [`OrderedAppend`](Capability::OrderedAppend); `Invalid`, with the
    /// rule.
    pub fn check(self, can: &Capabilities) -> Result<(), PortError> {
        can.require(Capability::OrderedAppend)?;
        let (bytes, most) = (self.0.len(), can.max_key().saturating_sub(DIGITS));
        if bytes == 0 {
            Err(PortError::invalid("sequence", "must not be empty"))
        } else if self.0.ends_with(|last: char| last.is_ascii_digit()) {
            Err(PortError::invalid("sequence", format_args!("must not end with a digit, is {:?}", self.0)))
        } else if bytes > most {
            let rule = format_args!("must be at most {most} bytes, so that {DIGITS} digits fit behind it, is {bytes}");
            Err(PortError::invalid("sequence", rule))
        } else {
            Ok(())
        }
    }

    /// Returns the number of an append to a sequence with this last number, 0 if it has none yet.
    /// For backends.
    ///
    /// # Errors
    /// [`Conflict`](StoreError::Conflict) if `after` is another number, with 0 as the index of the
    /// write; `Full` behind [`LAST`](Self::LAST).
    pub fn next(self, last: u64, after: Option<u64>) -> Result<u64, StoreError> {
        if after.is_some_and(|after| after != last) {
            return Err(StoreError::Conflict { write: 0, current: (last > 0).then(|| Version::new(last)) });
        }
        if last >= Self::LAST {
            let message = format!("the sequence {:?} has used its last number, {}", self.0, Self::LAST);
            return Err(PortError::new(PortErrorKind::Full, message).into());
        }
        Ok(last + 1)
    }

    /// Returns the error of a put that would create a row of this sequence. For backends.
    pub fn refuse_put(self, row: &str) -> StoreError {
        let rule = format_args!("must not be {row:?}: only an append creates a row of the sequence {:?}", self.0);
        PortError::invalid("row", rule).into()
    }

    /// Returns the error of the first append to this sequence while a put has left a row of its
    /// form. For backends.
    pub fn refuse_first(self, row: &str) -> StoreError {
        let rule = format_args!(
            "must not be {:?}: a put created {row:?}, which has the form of its rows; delete such rows before the first append",
            self.0
        );
        PortError::invalid("sequence", rule).into()
    }
}

fn is_number(digits: &[u8]) -> bool {
    digits.len() == DIGITS && digits.iter().all(u8::is_ascii_digit)
}

impl fmt::Display for Sequence<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::Failure;

    #[test]
    fn a_row_belongs_to_the_sequence_before_its_twenty_digits() {
        fn of_row(row: &str) -> Option<&str> {
            Sequence::of_row(row).map(Sequence::as_str)
        }
        assert_eq!(of_row("a/00000000000000000001"), Some("a/"));
        assert_eq!(of_row("日99999999999999999999"), Some("日"));
        for other in
            ["", "00000000000000000001", "a000000000000000000001", "a/0000000000000000001", "a/0000000000000000000x"]
        {
            assert_eq!(of_row(other), None, "{other}");
        }
        for name in ["a/", "a1/", "日"] {
            for number in [0, 1, Sequence::LAST, u64::MAX] {
                let row = Sequence::new(name).row(number);
                assert_eq!((of_row(&row), Sequence::new(name).number(&row)), (Some(name), Some(number)));
            }
        }
        assert_eq!(Sequence::new("a").number("a/00000000000000000001"), None);
        assert_eq!(Sequence::new("a").number("a99999999999999999999"), None, "no number of 64 bits");
    }

    #[test]
    fn a_sequence_ends_at_its_last_number() {
        let sequence = Sequence::new("a/");
        assert_eq!(sequence.next(Sequence::LAST - 1, None).unwrap(), Sequence::LAST);
        let full = sequence.next(Sequence::LAST, Some(Sequence::LAST)).unwrap_err();
        assert_eq!(full.backend().map(PortError::kind), Some(PortErrorKind::Full));
        assert_eq!(full.to_string(), "the sequence \"a/\" has used its last number, 9223372036854775807");
        assert!(sequence.next(Sequence::LAST, Some(u64::MAX)).unwrap_err().is_conflict());
    }
}
