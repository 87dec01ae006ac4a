//! What a queue knows of a message beside its content: the claim of its current delivery, and the
//! counts of earlier ones.
use async_nats::HeaderMap;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::wire;
use crate::queue::{AttemptError, ErrorHistory, Unexplained};

/// Form of the records. A later release that changes it raises the number.
const FORM: u32 = 1;

/// Header with the time until which the message is hidden, and the time for which it was.
pub(super) const UNTIL: &str = "Steadfast-Until";
/// The time in the claims of messages that are done.
pub(super) const DONE: u64 = 0;

/// A message of a stream. One of a stream that was made anew, or restored, may have the number of
/// an earlier one, and is another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in super::super) struct Numbered {
    pub(in super::super) number: u64,
    /// Time at which it was stored, in nanoseconds since 1970.
    pub(in super::super) stored_at: u64,
}

impl Numbered {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (number, stored_at) = text.split_once('-')?;
        Some(Self { number: number.parse().ok()?, stored_at: stored_at.parse().ok()? })
    }
}

impl std::fmt::Display for Numbered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.number, self.stored_at)
    }
}

/// Most by which the server's time, as two handles estimate it, differs: each is wrong by half of a
/// request at most.
const SKEW: u64 = 5_000_000_000;

/// Returns the time for which a message is still hidden. A clock that was set back by more than
/// estimates differ hides no message for longer than was asked for.
pub(super) fn hides_for(until: u64, span: u64, now: u64) -> Option<u64> {
    let left = until.saturating_sub(now);
    let is_asked = left <= span.saturating_add(SKEW) && span > 0 || until == u64::MAX;
    (left > 0 && is_asked).then_some(if until == u64::MAX { left } else { left.min(span) })
}

/// The record of a message, which is the last message of a subject of the stream of claims. Times
/// are in nanoseconds since 1970, of the server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Record {
    form: u32,
    /// Number of the record that began the current delivery; 0 is this one.
    pub(super) claim: u64,
    /// `true` while the current delivery may settle the message.
    pub(super) held: bool,
    /// The message is hidden until then.
    pub(super) until: u64,
    /// Time for which it was hidden when that was written.
    pub(super) span: u64,
    pub(super) deliveries: u32,
    pub(super) attempts: u32,
    unexplained: u32,
    /// `true` if the message was completed, and is about to go.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) done: bool,
    /// Reason for which the message is being moved to the dead letters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) moves: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    errors: Option<String>,
}

impl Default for Record {
    fn default() -> Self {
        Self {
            form: FORM,
            claim: 0,
            held: false,
            until: 0,
            span: 0,
            deliveries: 0,
            attempts: 0,
            unexplained: 0,
            done: false,
            moves: None,
            errors: None,
        }
    }
}

impl Record {
    /// Parses a record. `None` if it is damaged, or a newer release wrote it.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        serde_json::from_slice::<Self>(text).ok().filter(|record| record.form == FORM)
    }

    /// Returns the record as it is stored.
    pub(super) fn encode(&self) -> (HeaderMap, Bytes) {
        let mut headers = HeaderMap::new();
        headers.insert(UNTIL, format!("{} {}", self.until, self.span).as_str());
        // A record of numbers and texts is always encoded.
        (headers, serde_json::to_vec(self).unwrap_or_default().into())
    }

    /// Returns the counts of a dead letter as a header holds them.
    pub(super) fn counts(&self) -> String {
        format!("{} {} {}", self.deliveries, self.attempts, self.unexplained)
    }

    /// Returns the record of a dead letter that was never delivered.
    pub(super) fn of_dead_letter(counts: &str, errors: Option<String>) -> Option<Self> {
        let mut counts = counts.split(' ').map(|count| count.parse().ok());
        let (deliveries, attempts, unexplained) = (counts.next()??, counts.next()??, counts.next()??);
        Some(Self { deliveries, attempts, unexplained, errors, ..Self::default() })
    }

    pub(super) fn unexplained(&self) -> Unexplained {
        Unexplained::from_number(self.unexplained)
    }

    pub(super) fn errors(&self) -> ErrorHistory {
        self.errors.as_deref().map(ErrorHistory::decode).unwrap_or_default()
    }

    /// Returns the errors as a header holds them: those that fit.
    pub(super) fn errors_within(&self, most: usize) -> Option<String> {
        let mut errors = self.errors();
        loop {
            let text = wire::escape(&errors.encode()?);
            if text.len() <= most {
                return Some(text);
            }
            let mut fewer = ErrorHistory::default();
            // The first one is kept the longest.
            let left = errors.iter().enumerate().filter(|(at, _)| *at != 1 || errors.len() == 1);
            left.for_each(|(_, error)| fewer.push(error.clone()));
            if fewer.len() == errors.len() {
                return None;
            }
            errors = fewer;
        }
    }

    /// Returns the number of the claim, given that of this record.
    pub(super) const fn claim(&self, number: u64) -> u64 {
        if self.claim == 0 { number } else { self.claim }
    }

    /// Returns the time for which the message is still hidden.
    pub(super) fn hides_for(&self, now: u64) -> Option<u64> {
        hides_for(self.until, self.span, now)
    }

    /// Begins another delivery, hidden for `span`.
    pub(super) fn delivered(mut self, now: u64, span: u64) -> Self {
        if self.held {
            // No settlement ended the last one.
            self.attempts = self.attempts.saturating_add(1);
            self.unexplained = self.unexplained().expired().number();
        }
        self.deliveries = self.deliveries.saturating_add(1);
        (self.claim, self.held) = (0, true);
        self.hidden(now, span)
    }

    /// Hides the message for `span` from now.
    pub(super) fn hidden(mut self, now: u64, span: u64) -> Self {
        (self.until, self.span) = (now.saturating_add(span), span);
        self
    }

    /// Continues the delivery that this claim began.
    pub(super) fn extended(mut self, claim: u64, now: u64, span: u64, begun: Option<bool>) -> Self {
        self.claim = claim;
        if let Some(begun) = begun {
            self.unexplained = self.unexplained().marked(begun).number();
        }
        self.hidden(now, span)
    }

    /// Returns the same record, to be stored again in the place of the one with this number.
    pub(super) fn renewed(mut self, number: u64) -> Self {
        self.claim = self.claim(number);
        self
    }

    /// Ends the delivery: the message was not tried.
    pub(super) fn released(mut self, now: u64, span: u64) -> Self {
        self.unexplained = self.unexplained().marked(false).number();
        (self.claim, self.held) = (0, false);
        self.hidden(now, span)
    }

    /// Ends the delivery as a failed attempt.
    pub(super) fn abandoned(mut self, now: u64, span: u64, error: Option<Box<AttemptError>>) -> Self {
        let tried = self.attempts.saturating_sub(self.unexplained().untried());
        self.attempts = tried.saturating_add(1);
        self.unexplained = Unexplained::default().number();
        (self.claim, self.held) = (0, false);
        self.add(error);
        self.hidden(now, span)
    }

    /// Ends the delivery: the message is being moved to the dead letters.
    pub(super) fn moving(mut self, reason: String, error: Option<Box<AttemptError>>) -> Self {
        self.unexplained = self.unexplained().marked(false).number();
        (self.claim, self.held, self.moves) = (0, false, Some(reason));
        self.add(error);
        self
    }

    /// Returns the record of a message that was completed.
    pub(super) fn completed() -> Self {
        Self { done: true, until: DONE, ..Self::default() }
    }

    fn add(&mut self, error: Option<Box<AttemptError>>) {
        if let Some(error) = error {
            let mut errors = self.errors();
            errors.push(*error);
            self.errors = errors.encode();
        }
    }
}

#[cfg(all(test, not(steadfast_loom)))]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn a_claim_hides_its_message_also_where_the_estimated_time_is_behind() {
        let until = 100 * S + 2 * S;
        let of = |now| hides_for(until, 2 * S, now);
        assert_eq!((of(101 * S), of(102 * S), of(103 * S)), (Some(S), None, None));
        // For no longer than was asked, and no more than two estimates can differ.
        assert_eq!((of(100 * S - 1), of(97 * S), of(94 * S)), (Some(2 * S), Some(2 * S), None));
        // What was given back at once is visible wherever.
        assert_eq!(hides_for(100 * S, 0, 99 * S), None);
        assert_eq!(hides_for(u64::MAX, S, 100 * S), Some(u64::MAX - 100 * S));
    }
}
