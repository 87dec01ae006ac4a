//! The checkpoint of one partition, as the store has it: lines of text.
use std::fmt::Write as _;

use bytes::Bytes;

use super::finished::{Finished, MAX_WORDS};
use crate::record::{Unreadable, check_form, hex, words};

/// Names the format, so that another one can follow.
const FORM: &str = "checkpoint 1";

/// The recorded progress of one partition.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in super::super) struct Checkpoint {
    /// Hash of the topic's identity.
    pub(super) topic: u64,
    /// Fencing token of the owner that wrote it.
    pub(super) epoch: u64,
    /// Number of this write among those of its owner, by which the owner recognises it.
    pub(super) writes: u64,
    /// Claims in a row, this one included, that found events to process, without one finished
    /// since the first of them.
    pub(super) claims: u32,
    /// Last position of the careful mode: events up to it run one at a time, and are recorded
    /// before. 0 for none.
    pub(super) careful_until: u64,
    /// Number of events that were skipped because the topic no longer had them.
    pub(super) lost: u64,
    pub(super) suspect: Option<Suspect>,
    pub(super) finished: Finished,
}

/// An event that is recorded before it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Suspect {
    pub(super) position: u64,
    /// Number of times that its owner ended without a hand-over while it ran.
    pub(super) crashes: u32,
    /// `true` if it was about to run, or ran.
    pub(super) is_running: bool,
}

impl Checkpoint {
    pub(super) fn encode(&self) -> Bytes {
        let mut out = String::with_capacity(160);
        let Self { topic, epoch, writes, claims, careful_until, lost, suspect, finished } = self;
        let watermark = finished.watermark();
        let _ = writeln!(out, "{FORM}\ntopic {topic:x}\nowner {epoch} {writes} {claims}");
        let _ = writeln!(out, "at {watermark} {careful_until} {lost}");
        if let Some(Suspect { position, crashes, is_running }) = suspect {
            let state = if *is_running { "running" } else { "waiting" };
            let _ = writeln!(out, "suspect {position} {crashes} {state}");
        }
        let words = finished.words_above();
        if !words.is_empty() {
            out.push_str("above");
            for word in words {
                let _ = write!(out, " {word:x}");
            }
            out.push('\n');
        }
        out.push_str("end\n");
        out.into()
    }

    /// Reads a checkpoint. The error says why it cannot be read.
    pub(super) fn decode(record: &[u8]) -> Result<Self, &'static str> {
        const DAMAGED: &str = "the checkpoint is damaged";
        let text = std::str::from_utf8(record).map_err(|_| DAMAGED)?;
        let mut lines = text.split_terminator('\n');
        check_form(FORM, lines.next().unwrap_or_default()).map_err(|reason| match reason {
            Unreadable::TooNew => "the checkpoint was written by a newer release",
            Unreadable::Foreign => "the record is not a checkpoint",
        })?;
        let read = Self::body(&mut lines).ok_or(DAMAGED)?;
        // One record has one form: a damaged number is not read as another one.
        if lines.next().is_none() && read.encode() == record { Ok(read) } else { Err(DAMAGED) }
    }

    fn body<'a>(lines: &mut impl Iterator<Item = &'a str>) -> Option<Self> {
        let topic = hex(lines.next()?.strip_prefix("topic ")?)?;
        let [epoch, writes, claims] = words(lines.next()?.strip_prefix("owner ")?)?;
        let [watermark, careful_until, lost] = words(lines.next()?.strip_prefix("at ")?)?;
        let watermark: u64 = watermark.parse().ok()?;
        let (mut suspect, mut above) = (None, Vec::new());
        loop {
            let line = lines.next()?;
            if let Some(line) = line.strip_prefix("suspect ") {
                let [position, crashes, state] = words(line)?;
                let is_running = state == "running";
                suspect =
                    Some(Suspect { position: position.parse().ok()?, crashes: crashes.parse().ok()?, is_running });
            } else if let Some(line) = line.strip_prefix("above ") {
                if line.len() > MAX_WORDS * 17 {
                    return None;
                }
                above = line.split(' ').map(hex).collect::<Option<_>>()?;
            } else if line == "end" {
                break;
            } else {
                return None;
            }
        }
        Some(Self {
            topic,
            epoch: epoch.parse().ok()?,
            writes: writes.parse().ok()?,
            claims: claims.parse().ok()?,
            careful_until: careful_until.parse().ok()?,
            lost: lost.parse().ok()?,
            suspect,
            finished: Finished::of_words(watermark, &above)?,
        })
    }
}
