//! A compact binary form of stored values: numbers of variable length, and bytes behind their
//! length.
use bytes::{Buf as _, Bytes};

use super::record::Unreadable;

/// Bytes to which values are added.
#[derive(Debug, Default)]
pub(crate) struct Out(Vec<u8>);

impl Out {
    /// Begins a value with the number of its form.
    pub(crate) fn of_form(form: u64) -> Self {
        let mut out = Self::default();
        out.number(form);
        out
    }

    /// Adds a number: seven bits in a byte, the lowest first, the highest bit in all but the last.
    pub(crate) fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    /// Adds a value that may be absent.
    pub(crate) fn option<T>(&mut self, value: Option<T>, add: impl FnOnce(&mut Self, T)) {
        self.number(u64::from(value.is_some()));
        if let Some(value) = value {
            add(self, value);
        }
    }

    /// Adds a list behind its length.
    pub(crate) fn list<T>(&mut self, values: impl ExactSizeIterator<Item = T>, mut add: impl FnMut(&mut Self, T)) {
        self.number(values.len() as u64);
        values.for_each(|value| add(self, value));
    }

    pub(crate) fn into_bytes(self) -> Bytes {
        self.0.into()
    }
}

/// Bytes from which values are taken, in the order in which they were added. Each method returns
/// `None` if the bytes have another form.
#[derive(Debug, Clone)]
pub(crate) struct In(Bytes);

impl In {
    pub(crate) const fn new(bytes: Bytes) -> Self {
        Self(bytes)
    }

    /// Reads a whole value that begins with the number of its form.
    pub(crate) fn open<T>(bytes: Bytes, form: u64, read: impl FnOnce(&mut Self) -> Option<T>) -> Result<T, Unreadable> {
        let mut input = Self(bytes);
        match input.number() {
            Some(found) if found == form => {}
            Some(newer) if newer > form => return Err(Unreadable::TooNew),
            _ => return Err(Unreadable::Foreign),
        }
        read(&mut input).filter(|_| input.is_empty()).ok_or(Unreadable::Foreign)
    }

    pub(crate) fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.0.try_get_u8().ok()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    /// Returns bytes that share the memory.
    pub(crate) fn bytes(&mut self) -> Option<Bytes> {
        let length = usize::try_from(self.number()?).ok()?;
        (length <= self.0.len()).then(|| self.0.split_to(length))
    }

    /// Skips bytes or a text.
    pub(crate) fn skip(&mut self) -> Option<()> {
        let length = usize::try_from(self.number()?).ok()?;
        (length <= self.0.len()).then(|| self.0.advance(length))
    }

    /// Skips a text, which is checked as if it were taken.
    pub(crate) fn skip_text(&mut self) -> Option<()> {
        let length = usize::try_from(self.number()?).ok()?;
        str::from_utf8(self.0.get(..length)?).ok()?;
        self.0.advance(length);
        Some(())
    }

    pub(crate) fn text(&mut self) -> Option<String> {
        let length = usize::try_from(self.number()?).ok()?;
        let text = str::from_utf8(self.0.get(..length)?).ok()?.to_owned();
        self.0.advance(length);
        Some(text)
    }

    /// Returns a value that may be absent; the outer `None` is another form.
    pub(crate) fn option<T>(&mut self, take: impl FnOnce(&mut Self) -> Option<T>) -> Option<Option<T>> {
        match self.number()? {
            0 => Some(None),
            1 => Some(Some(take(self)?)),
            _ => None,
        }
    }

    pub(crate) fn list<T>(&mut self, mut take: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let length = usize::try_from(self.number()?).ok()?;
        // Each value has a byte at least.
        if length > self.0.len() {
            return None;
        }
        (0..length).map(|_| take(self)).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(all(test, not(steadfast_loom)))]
mod tests {
    use bytes::Bytes;

    use crate::{
        record::Unreadable,
        wire::{In, Out},
    };

    #[test]
    fn values_come_back_as_they_were_and_damage_is_noticed() {
        let numbers = [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX];
        let mut out = Out::default();
        out.list(numbers.iter(), |out, number| out.number(*number));
        out.option(Some("日本"), Out::text);
        out.option(None::<&str>, Out::text);
        let bytes = out.into_bytes();
        let read = |input: &mut In| {
            Some((input.list(In::number)?, input.option(In::text)?, input.option(In::text)?, input.is_empty()))
        };
        let expected = (numbers.to_vec(), Some("日本".to_owned()), None, true);
        assert_eq!(read(&mut In::new(bytes.clone())), Some(expected));
        for end in 0..bytes.len() {
            assert_eq!(read(&mut In::new(bytes.slice(..end))), None, "cut at {end}");
        }
        assert_eq!(In::new(Bytes::from(vec![0xff; 11])).number(), None);
    }

    #[test]
    fn a_value_of_a_higher_form_is_too_new_and_all_else_is_foreign() {
        let mut out = Out::of_form(2);
        out.text("a");
        let bytes = out.into_bytes();
        let opened = |bytes: &Bytes, form| In::open(bytes.clone(), form, In::text);
        assert_eq!(opened(&bytes, 2), Ok("a".to_owned()));
        assert_eq!(opened(&bytes, 1), Err(Unreadable::TooNew));
        assert_eq!(opened(&bytes, 3), Err(Unreadable::Foreign));
        let longer = Bytes::from([&bytes[..], &[0]].concat());
        for damaged in [&bytes.slice(..2), &Bytes::new(), &longer] {
            assert_eq!(opened(damaged, 2), Err(Unreadable::Foreign));
        }
    }
}
