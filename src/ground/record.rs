//! Stored records of text: a line with the name and the number of their form, and lines of words.

/// The reason for which a record cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// A newer release wrote it: its form has the name, and a higher number.
    TooNew,
    /// It is no record of this form, or a damaged one.
    Foreign,
}

/// Checks that a line names a form, such as `saga 1`.
pub(crate) fn check_form(form: &str, line: &str) -> Result<(), Unreadable> {
    if line == form {
        return Ok(());
    }
    let parts = |line: &str| {
        let (name, number) = line.rsplit_once(' ')?;
        Some((name.to_owned(), number.parse::<u64>().ok()?))
    };
    let is_newer = parts(form).zip(parts(line)).is_some_and(|(own, found)| found.0 == own.0 && found.1 > own.1);
    Err(if is_newer { Unreadable::TooNew } else { Unreadable::Foreign })
}

/// Splits a line into exactly `N` words.
pub(crate) fn words<const N: usize>(line: &str) -> Option<[&str; N]> {
    let mut words = [""; N];
    let mut found = line.split(' ');
    for word in &mut words {
        *word = found.next()?;
    }
    found.next().is_none().then_some(words)
}

/// Parses a number that was written in hexadecimal digits.
pub(crate) fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}

#[cfg(all(test, not(steadfast_loom)))]
mod tests {
    use crate::record::{Unreadable, check_form, words};

    #[test]
    fn a_higher_number_of_the_same_form_is_too_new_and_all_else_is_foreign() {
        let check = |line| check_form("saga 2", line);
        assert_eq!(check("saga 2"), Ok(()));
        assert_eq!(check("saga 3"), Err(Unreadable::TooNew));
        for line in ["saga 1", "saga 02", "saga", "saga -3", "sagas 3", "order 3", "", "saga 3 x"] {
            assert_eq!(check(line), Err(Unreadable::Foreign), "{line}");
        }
    }

    #[test]
    fn a_line_has_as_many_words_as_asked_for() {
        assert_eq!(words("a b"), Some(["a", "b"]));
        assert_eq!((words::<2>("a"), words::<2>("a b c")), (None, None));
    }
}
