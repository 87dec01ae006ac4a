//! The stored form of a saga: lines of text, readable in the store, and then the bytes of its
//! state.
use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use super::state::{Hosted, Kind, Origin, Owner, Phase, PlannedStep, Progress, Status, StepProgress};
use crate::{
    record::{Unreadable, check_form, hex, words},
    time::nanos,
};

/// Names the format, so that another one can follow.
const FORM: &str = "saga 1";

const PHASES: [(Phase, &str); 6] = [
    (Phase::Forward, "forward"),
    (Phase::Compensating, "compensating"),
    (Phase::Completed, "completed"),
    (Phase::Compensated, "compensated"),
    (Phase::StuckForward, "stuck-forward"),
    (Phase::StuckCompensating, "stuck-compensating"),
];

const STATUSES: [(Status, &str); 10] = [
    (Status::Ready, "ready"),
    (Status::Started, "started"),
    (Status::Waiting, "waiting"),
    (Status::Done, "done"),
    (Status::Failed, "failed"),
    (Status::Undoing, "undoing"),
    (Status::UndoWaiting, "undo-waiting"),
    (Status::Undone, "undone"),
    (Status::UndoFailed, "undo-failed"),
    (Status::Skipped, "skipped"),
];

/// Flags of a step: pivot, with compensation, compensated first, unknown, pending.
const FLAGS: [&str; 5] = ["p", "c", "f", "u", "w"];

fn word<T: PartialEq + Copy>(words: &[(T, &'static str)], value: T) -> &'static str {
    words.iter().find(|(known, _)| *known == value).map_or("", |(_, word)| word)
}

fn value<T: Copy>(words: &[(T, &'static str)], word: &str) -> Option<T> {
    words.iter().find(|(_, known)| *known == word).map(|(value, _)| *value)
}

/// Bytes that a record may need beside its state and the names of its steps, without texts: of the
/// saga, and of each step.
const HEAD: usize = 256;
const EACH: usize = 80;
/// The same, of each text and header of its origin.
const EACH_ORIGIN: usize = 64;

impl Progress {
    /// Returns the size that the record has at most, without texts, until the state changes.
    pub(super) fn size_without_texts(&self) -> usize {
        let Origin { texts, headers } = &self.hosted.origin;
        let origin = texts.iter().chain(&**headers).map(|(name, text)| name.len() + text.len() + EACH_ORIGIN);
        let origin = origin.sum::<usize>();
        HEAD + origin + self.state.len() + self.steps.iter().map(|step| step.planned.name.len() + EACH).sum::<usize>()
    }

    /// Encodes the record within this size: without its texts, if they leave no room.
    pub(super) fn encode_within(&self, most: usize) -> Bytes {
        let whole = self.encode();
        if whole.len() <= most {
            return whole;
        }
        let mut bare = self.clone();
        bare.steps.iter_mut().for_each(|step| step.note.clear());
        bare.reason.clear();
        bare.cancelled = bare.cancelled.map(|_| String::new());
        bare.encode()
    }

    pub(super) fn encode(&self) -> Bytes {
        let mut out = Lines(Vec::with_capacity(192 + self.steps.len() * 48 + self.state.len()));
        out.words(FORM).end();
        match self.owner {
            Some(Owner { executor, run }) => {
                out.words("owner ").hex(executor).space().hex(run).space().hex(self.hosted.request)
            }
            None => out.words("owner -"),
        };
        out.end().words("at ").number(self.epoch).space().number(self.writes).space().hex(self.input).space();
        out.words(word(&PHASES, self.phase)).end();
        if let Some(step) = self.failed_step {
            out.words("failed ").number(step.into()).end();
        }
        if self.is_woken {
            out.words("woken").end();
        }
        if self.hosted.failures > 0 {
            out.words("failures ").number(self.hosted.failures.into()).end();
        }
        if !self.reason.is_empty() {
            out.text("reason", &self.reason);
        }
        if let Some(reason) = &self.cancelled {
            out.text("cancelled", reason);
        }
        for (name, text) in &self.hosted.origin.texts {
            out.words("origin ").text(name, text);
        }
        for (name, value) in &*self.hosted.origin.headers {
            out.text("header", name).text("value", value);
        }
        for step in &self.steps {
            let PlannedStep { name, kind: Kind { is_pivot, compensates, first }, group } = &step.planned;
            out.words("step ").number((*group).into()).space().words(word(&STATUSES, step.status)).space();
            out.number(step.attempts.into()).space().number(step.undo_attempts.into()).words(" -");
            let flags = [*is_pivot, *compensates, *first, step.is_unknown, step.is_pending];
            for (flag, _) in FLAGS.into_iter().zip(flags).filter(|(_, is_set)| *is_set) {
                out.words(flag);
            }
            out.space().number(nanos(step.wait)).space().words(name).end();
            if !step.note.is_empty() {
                out.text("note", &step.note);
            }
        }
        out.words("state ").number(self.state.len() as u64).end();
        out.0.extend_from_slice(&self.state);
        out.0.into()
    }

    /// Reads a record. The error says why it cannot be read.
    pub(super) fn decode(record: &Bytes) -> Result<Self, &'static str> {
        let mut rest = Reader(record.clone());
        check_form(FORM, &rest.line().unwrap_or_default()).map_err(|reason| match reason {
            Unreadable::TooNew => "the record was written by a newer release",
            Unreadable::Foreign => "the record is not one of a saga",
        })?;
        Self::body(rest).ok_or("the record is damaged")
    }

    fn body(mut rest: Reader) -> Option<Self> {
        let line = rest.line()?;
        let mut hosted = Hosted::default();
        let owner = match line.strip_prefix("owner ")? {
            "-" => None,
            owner => {
                let [executor, run, request] = words(owner)?;
                hosted.request = hex(request)?;
                Some(Owner { executor: hex(executor)?, run: hex(run)? })
            }
        };
        let line = rest.line()?;
        let [epoch, writes, input, phase] = words(line.strip_prefix("at ")?)?;
        let mut all = Self {
            input: hex(input)?,
            owner,
            epoch: epoch.parse().ok()?,
            writes: writes.parse().ok()?,
            cancelled: None,
            is_woken: false,
            phase: value(&PHASES, phase)?,
            failed_step: None,
            reason: String::new(),
            hosted,
            steps: Vec::new(),
            state: Bytes::new(),
        };
        loop {
            let line = rest.line()?;
            let (name, value) = line.split_once(' ').unwrap_or((&line, ""));
            match name {
                "failed" => all.failed_step = Some(value.parse().ok()?),
                "woken" => all.is_woken = true,
                "failures" => all.hosted.failures = value.parse().ok()?,
                "reason" => all.reason = rest.text(value)?,
                "cancelled" => all.cancelled = Some(rest.text(value)?),
                "origin" => {
                    let [name, length] = words(value)?;
                    all.hosted.origin.texts.insert(name.to_owned(), rest.text(length)?);
                }
                "header" => {
                    let (name, line) = (rest.text(value)?, rest.line()?);
                    let value = rest.text(line.strip_prefix("value ")?)?;
                    Arc::make_mut(&mut all.hosted.origin.headers).insert(name, value);
                }
                "step" => all.steps.push(step(value)?),
                "note" => all.steps.last_mut()?.note = rest.text(value)?,
                "state" => {
                    all.state = rest.0;
                    let is_whole = value.parse() == Ok(all.state.len()) && !all.steps.is_empty();
                    let names_step = all.failed_step.is_none_or(|step| usize::from(step) < all.steps.len());
                    let is_at_step = !all.is_stuck() || all.stuck_step().is_some();
                    return (is_whole && names_step && is_at_step).then_some(all);
                }
                _ => return None,
            }
        }
    }
}

fn step(line: &str) -> Option<StepProgress> {
    let [group, status, attempts, undo_attempts, flags, wait, name] = words(line)?;
    let flags = flags.strip_prefix('-')?;
    let [is_pivot, compensates, first, is_unknown, is_pending] = FLAGS.map(|flag| flags.contains(flag));
    let kind = Kind { is_pivot, compensates, first };
    let planned = PlannedStep { name: name.into(), kind, group: group.parse().ok()? };
    let (attempts, undo_attempts) = (attempts.parse().ok()?, undo_attempts.parse().ok()?);
    let wait = Duration::from_nanos(wait.parse().ok()?);
    let (status, note) = (value(&STATUSES, status)?, String::new());
    Some(StepProgress { planned, status, attempts, undo_attempts, is_unknown, is_pending, wait, note })
}

/// Lines of a record. Each step writes one: the machinery of `write!` took most of a saga's time in
/// memory.
struct Lines(Vec<u8>);

impl Lines {
    #[inline]
    fn words(&mut self, words: &str) -> &mut Self {
        self.0.extend_from_slice(words.as_bytes());
        self
    }

    #[inline]
    fn space(&mut self) -> &mut Self {
        self.0.push(b' ');
        self
    }

    #[inline]
    fn end(&mut self) -> &mut Self {
        self.0.push(b'\n');
        self
    }

    fn number(&mut self, number: u64) -> &mut Self {
        self.digits::<10>(number)
    }

    fn hex(&mut self, number: u64) -> &mut Self {
        self.digits::<16>(number)
    }

    #[inline]
    fn digits<const BASE: u64>(&mut self, mut number: u64) -> &mut Self {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        // Most numbers of a record have one digit.
        if number < BASE {
            self.0.push(DIGITS[number as usize]);
            return self;
        }
        let (mut digits, mut at) = ([b'0'; 20], 20);
        while number > 0 {
            at -= 1;
            digits[at] = DIGITS[(number % BASE) as usize];
            number /= BASE;
        }
        self.0.extend_from_slice(&digits[at..]);
        self
    }

    /// Adds a text behind its length, because it may contain any character.
    fn text(&mut self, name: &str, text: &str) -> &mut Self {
        self.words(name).space().number(text.len() as u64).end().words(text).end()
    }
}

struct Reader(Bytes);

impl Reader {
    fn line(&mut self) -> Option<String> {
        let end = self.0.iter().position(|byte| *byte == b'\n')?;
        let line = String::from_utf8(self.0.split_to(end).to_vec()).ok()?;
        let _ = self.0.split_to(1);
        Some(line)
    }

    fn text(&mut self, length: &str) -> Option<String> {
        let length: usize = length.parse().ok()?;
        if self.0.len() <= length || self.0[length] != b'\n' {
            return None;
        }
        let text = String::from_utf8(self.0.split_to(length).to_vec()).ok()?;
        let _ = self.0.split_to(1);
        Some(text)
    }
}
