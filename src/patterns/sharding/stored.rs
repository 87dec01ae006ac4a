//! The text format of a map in a store.
use std::fmt::{self, Write as _};

use super::{
    map::{Layout, ShardId, ShardMap},
    move_steps::{Chunk, Move, Step},
    pins::Pins,
};
use crate::record::{Unreadable, check_form};

const FIRST: &str = "steadfast-shards 1";

/// Returns `true` if this is a map in the format of a newer release.
pub(super) fn is_newer(text: &str) -> bool {
    check_form(FIRST, text.lines().next().unwrap_or_default()) == Err(Unreadable::TooNew)
}

/// Displays bytes as an `x` and two hexadecimal digits for each.
pub(super) struct Hex<'a>(pub(super) &'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('x')?;
        self.0
            .iter()
            .flat_map(|byte| [byte >> 4, byte & 15])
            .try_for_each(|digit| f.write_char(char::from(if digit < 10 { b'0' + digit } else { b'a' + digit - 10 })))
    }
}

fn digit(text: u8) -> Option<u8> {
    char::from(text).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

fn bytes(text: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = text.strip_prefix('x')?.as_bytes().as_chunks::<2>();
    let mut bytes = Vec::with_capacity(pairs.len());
    for [high, low] in pairs {
        bytes.push(digit(*high)? << 4 | digit(*low)?);
    }
    rest.is_empty().then_some(bytes)
}

fn shard(text: &str) -> Option<ShardId> {
    text.parse().ok().map(ShardId)
}

const STEPS: [(Step, &str); 5] = [
    (Step::Copying, "copying"),
    (Step::Frozen, "frozen"),
    (Step::Closed, "closed"),
    (Step::Switched, "switched"),
    (Step::Undoing, "undoing"),
];

impl ShardMap {
    /// Formats the map as text, which [`from_text`](Self::from_text) parses.
    pub fn to_text(&self) -> String {
        let mut out = format!("{FIRST}\nversion {}\n", self.version);
        let slots = match self.layout {
            Layout::Keys => 0,
            Layout::Slots(slots) => slots,
        };
        let _ = writeln!(out, "slots {slots}");
        for (low, _, owner) in self.ranges.iter() {
            let _ = match owner {
                Some(shard) => writeln!(out, "range {} {}", Hex(low), shard.0),
                None => writeln!(out, "range {} -", Hex(low)),
            };
        }
        let mut pinned: Vec<_> = self.pinned.iter().collect();
        pinned.sort();
        for (key, owner) in pinned {
            let _ = writeln!(out, "pin {} {}", Hex(key), owner.0);
        }
        if let Some(work) = &self.moving {
            let step = STEPS.iter().find(|s| s.0 == work.step).map_or("", |s| s.1);
            let _ = write!(out, "move {} {step} {} {} ", work.id, work.from.0, work.to.0);
            let _ = match &work.chunk {
                Chunk::Key(key) => writeln!(out, "key {}", Hex(key)),
                Chunk::Range { low, high: None } => writeln!(out, "range {} -", Hex(low)),
                Chunk::Range { low, high: Some(high) } => writeln!(out, "range {} {}", Hex(low), Hex(high)),
            };
        }
        out
    }

    /// Parses the text of [`to_text`](Self::to_text). Returns `None` if it is damaged, or of a
    /// newer release.
    pub fn from_text(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        if lines.next()? != FIRST {
            return None;
        }
        let version = lines.next()?.strip_prefix("version ")?.parse().ok()?;
        if version > Self::MAX_VERSION {
            return None;
        }
        let slots = lines.next()?.strip_prefix("slots ")?.parse().ok()?;
        if slots > Self::MAX_SLOTS {
            return None;
        }
        let layout = if slots == 0 { Layout::Keys } else { Layout::Slots(slots) };
        let (mut ranges, mut pinned, mut moving) = (Vec::new(), Pins::default(), None);
        for line in lines {
            match *line.split(' ').collect::<Vec<_>>() {
                ["range", low, "-"] => ranges.push((bytes(low)?, None)),
                ["range", low, owner] => ranges.push((bytes(low)?, Some(shard(owner)?))),
                ["pin", key, owner] => {
                    pinned.insert(&bytes(key)?, shard(owner)?);
                }
                ["move", id, step, from, to, ref chunk @ ..] if moving.is_none() => {
                    let chunk = match *chunk {
                        ["key", key] => Chunk::Key(bytes(key)?),
                        ["range", low, "-"] => Chunk::Range { low: bytes(low)?, high: None },
                        ["range", low, high] => Chunk::Range { low: bytes(low)?, high: Some(bytes(high)?) },
                        _ => return None,
                    };
                    let step = STEPS.iter().find(|s| s.1 == step)?.0;
                    moving = Some(Move { id: id.parse().ok()?, chunk, from: shard(from)?, to: shard(to)?, step });
                }
                _ => return None,
            }
        }
        let starts = ranges.first().is_some_and(|first: &(Vec<u8>, _)| first.0.is_empty());
        let sorted = ranges.windows(2).all(|two| two[0].0 < two[1].0);
        (starts && sorted).then(|| Self::build(version, layout, ranges, pinned, moving))
    }
}
