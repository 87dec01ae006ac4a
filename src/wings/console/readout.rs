//! A read-out: the state of one component as the page, the live updates and `state.json` show it.
use std::time::Duration;

use serde::Serialize;

/// Kind of trouble, in the order in which the first page lists them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Trouble {
    /// Calls are rejected: a breaker is open, or a pause was asked for.
    Open,
    /// A limit has no room.
    Full,
    /// Work needs an operator: stuck sagas, dead letters, paused queues, halted partitions.
    Stuck,
    /// Work waits for too long.
    Behind,
    /// An engine does not answer, a read-out failed, or data is lost.
    Lost,
    /// No node leads.
    #[allow(dead_code, reason = "elections and streams alone are without a leader")]
    Leaderless,
}

/// The state of one component at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct ReadOut {
    /// The state in a word or two.
    pub(super) state: String,
    pub(super) trouble: Option<Trouble>,
    /// Seconds since the component entered the state, if it knows.
    #[serde(rename = "since_seconds", serialize_with = "seconds")]
    pub(super) since: Option<Duration>,
    /// Reason for the state, in the component's words; empty if it needs none.
    pub(super) why: String,
    pub(super) facts: Vec<(&'static str, String)>,
    pub(super) tables: Vec<Table>,
    pub(super) body: Option<Body>,
    /// Numbers that are drawn over time.
    #[serde(skip)]
    pub(super) drawn: Vec<(&'static str, Drawn)>,
    /// Lines that the component keeps itself, oldest point first.
    pub(super) lines: Vec<(&'static str, Vec<f64>)>,
    pub(super) actions: Vec<Action>,
}

/// A number that is drawn over time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Drawn {
    Level(f64),
    /// A count since the start of the process, which is drawn as its growth in a minute.
    Total(u64),
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Table {
    pub(super) caption: String,
    pub(super) columns: Vec<&'static str>,
    pub(super) rows: Vec<Row>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Row {
    /// Part of the component that the row leads to, such as the id of a saga.
    pub(super) of: Option<String>,
    /// `true` if the row needs an operator.
    pub(super) wrong: bool,
    pub(super) cells: Vec<String>,
}

/// The body of a message, as text or in hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Body {
    pub(super) bytes: usize,
    /// Number of bytes that are not shown.
    pub(super) cut: usize,
    pub(super) encoding: &'static str,
    pub(super) text: String,
}

/// Something that an operator can do now.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Action {
    /// The action as a word of an address.
    pub(super) name: &'static str,
    pub(super) title: String,
    /// The effect, and the number of things that it has an effect on.
    pub(super) effect: String,
    /// The state that the effect was told for: an action on another state is a conflict.
    pub(super) version: String,
    pub(super) note: Note,
    /// The text that an operator edits: the settings in effect.
    #[serde(skip)]
    pub(super) text: String,
}

/// Text that an operator adds to an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Note {
    None,
    Required,
    /// Settings as TOML, whose difference is shown before they are applied.
    Settings,
}

impl ReadOut {
    pub(super) fn new(state: impl Into<String>) -> Self {
        Self { state: state.into(), ..Self::default() }
    }

    pub(super) fn trouble(mut self, trouble: Trouble, why: impl Into<String>) -> Self {
        (self.trouble, self.why) = (Some(trouble), why.into());
        self
    }

    pub(super) fn since(mut self, since: Option<Duration>) -> Self {
        self.since = since;
        self
    }

    pub(super) fn fact(mut self, label: &'static str, value: impl ToString) -> Self {
        self.facts.push((label, value.to_string()));
        self
    }

    /// Adds a number as a fact that is also drawn over time.
    pub(super) fn level(mut self, label: &'static str, value: f64) -> Self {
        self.drawn.push((label, Drawn::Level(value)));
        self.fact(label, value)
    }

    /// Adds a count as a fact, whose growth is drawn over time under another label.
    pub(super) fn total(mut self, label: &'static str, growth: &'static str, total: u64) -> Self {
        self.drawn.push((growth, Drawn::Total(total)));
        self.fact(label, total)
    }

    pub(super) fn line(mut self, label: &'static str, points: Vec<f64>) -> Self {
        self.lines.push((label, points));
        self
    }

    pub(super) fn table(mut self, table: Table) -> Self {
        if !table.rows.is_empty() {
            self.tables.push(table);
        }
        self
    }

    pub(super) fn action(
        mut self,
        name: &'static str,
        title: impl Into<String>,
        effect: impl Into<String>,
        version: impl ToString,
        note: Note,
    ) -> Self {
        let (title, effect, version) = (title.into(), effect.into(), version.to_string());
        self.actions.push(Action { name, title, effect, version, note, text: String::new() });
        self
    }
}

impl Table {
    pub(super) fn new(caption: impl Into<String>, columns: &[&'static str]) -> Self {
        Self { caption: caption.into(), columns: columns.to_vec(), rows: Vec::new() }
    }

    pub(super) fn push<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(Row { of: None, wrong: false, cells: cells.into() });
    }

    /// Adds a row that leads to a part of the component.
    pub(super) fn push_of<const N: usize>(&mut self, of: impl Into<String>, wrong: bool, cells: [String; N]) {
        self.rows.push(Row { of: Some(of.into()), wrong, cells: cells.into() });
    }
}

impl Body {
    /// Number of bytes of a body that are shown.
    const SHOWN: usize = 4096;

    pub(super) fn new(bytes: &[u8]) -> Self {
        let shown = &bytes[..bytes.len().min(Self::SHOWN)];
        // A body that is cut may end within a character.
        let text = match std::str::from_utf8(shown) {
            Ok(text) => Some(text),
            Err(error) if error.error_len().is_none() => std::str::from_utf8(&shown[..error.valid_up_to()]).ok(),
            Err(_) => None,
        };
        let (encoding, text) = match text {
            Some(text) => ("text", text.to_owned()),
            None => ("hexadecimal", hexadecimal(shown)),
        };
        Self { bytes: bytes.len(), cut: bytes.len() - shown.len(), encoding, text }
    }
}

/// Returns the bytes in lines of 32.
fn hexadecimal(bytes: &[u8]) -> String {
    let line = |line: &[u8]| line.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ");
    bytes.chunks(32).map(line).collect::<Vec<_>>().join("\n")
}

fn seconds<S: serde::Serializer>(since: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
    since.map(|since| since.as_secs()).serialize(to)
}

/// Returns a duration in its one or two largest units: `12 s`, `3 min`, `2 h 5 min`.
pub(super) fn spoken(time: Duration) -> String {
    match time.as_secs() {
        0 if time.is_zero() => "0 s".to_owned(),
        0 => format!("{} ms", time.as_millis().max(1)),
        s @ 1..=119 => format!("{s} s"),
        s @ 120..=7_199 => format!("{} min", s / 60),
        s @ 7_200..=172_799 => format!("{} h {} min", s / 3600, s / 60 % 60),
        s => format!("{} d {} h", s / 86_400, s / 3600 % 24),
    }
}

/// Returns a number of things: `1 letter`, `3 letters`.
pub(super) fn count(n: u64, thing: &str) -> String {
    format!("{n} {thing}{}", if n == 1 { "" } else { "s" })
}
