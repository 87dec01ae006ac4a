//! Queues with their dead letters.
use std::{sync::Arc, time::Duration};

use super::{
    super::{
        panel::{Look, Order, Source, View, unknown},
        readout::{Action, Body, Note, ReadOut, Row, Table, Trouble, count, spoken},
    },
    letters::{Told, delete},
};
use crate::{
    port::BoxFuture,
    queue::{MessageId, Peeked, Queue, QueueError, redrive},
    race::{First, race},
    time::Timestamp,
};

/// Maximum number of messages, and of dead letters, that are listed.
const LISTED: usize = 20;

/// Age of the oldest message, if it is visible, from which the queue is behind.
const BEHIND: Duration = Duration::from_secs(900);

/// Parts of a queue that are lists.
const LETTERS: &str = "letters";
const MESSAGES: &str = "messages";

/// Prefixes of the parts that are a dead letter, and a message.
const LETTER: &str = "letter ";
const MESSAGE: &str = "message ";

/// The part of a queue's operation that is kept beside the queue.
pub(in super::super) trait Control: Send + Sync {
    fn is_paused<'a>(&'a self, queue: &'a dyn Queue) -> BoxFuture<'a, Result<bool, String>>;
    fn set_paused<'a>(&'a self, queue: &'a dyn Queue, paused: bool) -> BoxFuture<'a, Result<(), String>>;
    fn cancel<'a>(&'a self, queue: &'a dyn Queue, id: MessageId) -> BoxFuture<'a, Result<(), String>>;
}

struct Shown {
    queue: Arc<dyn Queue>,
    control: Option<Arc<dyn Control>>,
}

/// Returns the view of a queue.
pub(in super::super) fn queue(queue: Arc<dyn Queue>, control: Option<Arc<dyn Control>>) -> View {
    View(Box::new(Shown { queue, control }))
}

impl Source for Shown {
    fn kind(&self) -> &'static str {
        "queue"
    }

    fn asks_engine(&self) -> bool {
        true
    }

    fn has_parts(&self) -> bool {
        true
    }

    /// Letters that came meanwhile are not acted on, so that they are no conflict: while a service
    /// is broken they come all the time.
    fn holds(&self, order: &Order, now: &Action) -> bool {
        match Told::parse(&order.version).zip(Told::parse(&now.version)) {
            Some((told, now)) => told.is_among(&now),
            None => now.version == order.version,
        }
    }

    fn read<'a>(&'a self, look: &'a Look) -> BoxFuture<'a, Result<ReadOut, String>> {
        Box::pin(async move {
            match look.of.as_deref() {
                None => self.whole(look).await,
                Some(of) => self.part(of, look).await,
            }
        })
    }

    fn act<'a>(&'a self, order: &'a Order) -> BoxFuture<'a, Result<String, String>> {
        Box::pin(async move { self.perform(order).await })
    }
}

impl Shown {
    /// Reads the queue by two requests for its messages, two for its dead letters, and one to the
    /// store of its control. Only the oldest message and letter are read with their bodies.
    ///
    /// An operator can pause a queue whose messages are counted too slowly, or not at all.
    async fn whole(&self, look: &Look) -> Result<ReadOut, String> {
        let Some(control) = &self.control else { return self.counted(None, look.wall).await };
        let is_paused = control.is_paused(&*self.queue).await?;
        let counted = race(self.counted(Some(is_paused), look.wall), look.clock.sleep(look.limit / 4 * 3)).await;
        let why = match counted {
            First::One(Ok(out)) => return Ok(out),
            First::One(Err(why)) => why,
            First::Other(()) => format!("its messages were not counted within {:?}", look.limit / 4 * 3),
        };
        let state = if is_paused { "paused, and not counted" } else { "not counted" };
        Ok(offer(ReadOut::new(state).trouble(Trouble::Lost, why), is_paused, None))
    }

    async fn counted(&self, paused: Option<bool>, now: Timestamp) -> Result<ReadOut, String> {
        let depth = self.queue.depth().await.map_err(words)?;
        let oldest = self.queue.peek(1).await.map_err(words)?.pop();
        let (dead, letter) = match self.queue.dead_letters() {
            Some(dead) => {
                let depth = dead.depth().await.map_err(words)?;
                (depth.total(), if depth.total() > 0 { dead.peek(1).await.map_err(words)?.pop() } else { None })
            }
            None => (0, None),
        };
        let mut out = ReadOut::new(match (paused, dead) {
            (Some(true), 0) => "paused",
            (Some(true), _) => "paused, with dead letters",
            (_, 0) => "running",
            _ => "holding dead letters",
        });
        if dead > 0 {
            let reason = letter.as_ref().and_then(|letter| letter.reason.as_deref()).unwrap_or("without a reason");
            out = out.trouble(Trouble::Stuck, format!("{}; the oldest: {reason}", count(dead, "dead letter")));
        } else if paused == Some(true) {
            out = out.trouble(Trouble::Stuck, "an operator paused it: its listeners take no message");
        }
        let waits = oldest.as_ref().filter(|oldest| !oldest.hidden).map(|oldest| passed(oldest.sent_at, now));
        if let Some(waits) = waits.filter(|waits| *waits >= BEHIND && out.trouble.is_none()) {
            out.state = "behind".to_owned();
            out = out.trouble(Trouble::Behind, format!("the oldest message waits for {}", spoken(waits)));
        }
        out = out
            .level("visible", depth.visible as f64)
            .fact("in flight", depth.in_flight)
            .fact("delayed", depth.delayed)
            .level("dead letters", dead as f64);
        if let Some(oldest) = oldest {
            out = out.fact("oldest message", age(oldest.sent_at, now));
        }
        if let Some(is_paused) = paused {
            out = offer(out, is_paused, Some(depth.visible));
        }
        if let Some(letter) = letter {
            let (all, told) = (count(dead, "dead letter"), Told::new(dead, [&letter.id]));
            let effect = format!("Sends {all} to the queue again, as new messages. Letters that come meanwhile stay.");
            out = out.action("redrive", format!("Redrive {all}"), effect, told, Note::None);
        }
        let mut inside = Table::new("Inside", &["list", "number"]);
        if self.queue.dead_letters().is_some() {
            inside.push_of(LETTERS, dead > 0, ["dead letters".to_owned(), dead.to_string()]);
        }
        inside.push_of(MESSAGES, false, ["messages".to_owned(), depth.total().to_string()]);
        Ok(out.table(inside))
    }

    /// Lists the first messages or dead letters.
    async fn list(&self, prefix: &str, now: Timestamp) -> Result<ReadOut, String> {
        let Some(queue) = self.holding(prefix) else { return Ok(gone()) };
        let (all, listed) = (queue.depth().await.map_err(words)?.total(), queue.peek(LISTED).await.map_err(words)?);
        let (caption, state) = if prefix == LETTER { ("Dead letters", "reason") } else { ("Messages", "state") };
        let mut table = Table::new(caption, &["id", state, "attempts", "last error", "age"]);
        table.rows.extend(listed.iter().map(|message| row(prefix, message, now)));
        let mut out = ReadOut::new("listed").fact("listed", table.rows.len()).fact("all", all);
        if prefix == LETTER && !listed.is_empty() {
            // Deleting needs a look at what is deleted.
            let (letters, n) = (count(all, "dead letter"), listed.len());
            let effect = match all > n as u64 {
                false => format!("Deletes {letters} for ever: those that are listed, and none that comes meanwhile."),
                true => format!(
                    "Deletes {letters} for ever, of which {n} are listed. Of those that come meanwhile, as many may be among them as are not listed."
                ),
            };
            let told = Told::new(all, listed.iter().map(|letter| &letter.id));
            out = out.action("purge", format!("Delete {letters}"), effect, told, Note::Required);
        }
        Ok(out.table(table))
    }

    /// Returns the queue that holds messages of this prefix.
    fn holding(&self, prefix: &str) -> Option<Arc<dyn Queue>> {
        if prefix == LETTER { self.queue.dead_letters() } else { Some(self.queue.clone()) }
    }

    async fn part(&self, of: &str, look: &Look) -> Result<ReadOut, String> {
        let (prefix, id) = match (of, of.strip_prefix(LETTER), of.strip_prefix(MESSAGE)) {
            (LETTERS, ..) => return self.list(LETTER, look.wall).await,
            (MESSAGES, ..) => return self.list(MESSAGE, look.wall).await,
            (_, Some(id), _) => (LETTER, id),
            (_, _, Some(id)) => (MESSAGE, id),
            _ => return Ok(gone()),
        };
        let Some(queue) = self.holding(prefix) else { return Ok(gone()) };
        let found = queue.peek(LISTED).await.map_err(words)?;
        let Some(message) = found.iter().find(|message| message.id.to_string() == id) else {
            let mut out = gone();
            if found.len() >= LISTED {
                out = ReadOut::new("not shown");
                out.why = format!("it is gone, or not among the first {LISTED}, which alone are read");
            }
            return Ok(out);
        };
        let is_letter = prefix == LETTER;
        let state = match (is_letter, message.hidden) {
            (true, _) => "a dead letter",
            (false, true) => "hidden",
            (false, false) => "visible",
        };
        let mut out = ReadOut::new(state)
            .fact("age", age(message.sent_at, look.wall))
            .fact("deliveries", message.deliveries)
            .fact("attempts", message.attempts)
            .fact("crashes", message.crashes);
        out.why = message.reason.clone().unwrap_or_default();
        if let Some(group) = &message.group {
            out = out.fact("group", group);
        }
        let mut errors = Table::new("Errors by attempt", &["attempt", "at", "kind", "error"]);
        for error in &*message.errors {
            let kind = error.kind.as_str().to_owned();
            errors.push([error.attempt.to_string(), error.at.to_string(), kind, error.text.clone()]);
        }
        let mut headers = Table::new("Headers", &["header", "value"]);
        message.headers.iter().for_each(|(name, value)| headers.push([name.clone(), value.clone()]));
        out = out.table(errors).table(headers);
        if !look.hides_bodies {
            out.body = Some(Body::new(&message.body));
        }
        if is_letter {
            // Not its deliveries: a redrive of another letter raises them.
            let effect = "Sends this dead letter to the queue again, as a new message. The others stay.";
            out = out.action("redrive", "Redrive", effect, "", Note::None);
        } else if self.control.is_some() {
            let effect = "Ends this message as a dead letter. A handler that runs is asked to stop.";
            out = out.action("cancel", "Cancel", effect, message.deliveries, Note::None);
        }
        Ok(out)
    }

    async fn perform(&self, order: &Order) -> Result<String, String> {
        let part = order.part();
        match order.action.as_str() {
            "redrive" if part.is_empty() => {
                // As many as the operator was told of.
                let most = Told::parse(&order.version).map_or(0, |told| told.all);
                let sent = redrive(&*self.queue, most as usize, |_| true).await.map_err(words)? as u64;
                match sent < most {
                    true => Err(format!("{sent} of {most} sent again; the others stay, or were gone")),
                    false => Ok(format!("{} sent again.", count(sent, "dead letter"))),
                }
            }
            "redrive" => {
                let id = part.strip_prefix(LETTER).unwrap_or_default();
                match redrive(&*self.queue, 1, |letter| letter.id.to_string() == id).await.map_err(words)? {
                    0 => Err("the dead letter is gone".to_owned()),
                    _ => Ok("The dead letter was sent again.".to_owned()),
                }
            }
            "purge" => {
                let dead = self.queue.dead_letters().ok_or("the queue has no dead letters")?;
                let told = Told::parse(&order.version).ok_or("the form names no dead letters")?;
                let deleted = delete(&*dead, &told)
                    .await
                    .map_err(|(deleted, error)| format!("{deleted} of {} deleted: {}", told.all, words(error)))?;
                match deleted < told.all {
                    true => Err(format!("{deleted} of {} deleted; the others are in use, or were gone", told.all)),
                    false => Ok(format!("{} deleted.", count(deleted, "dead letter"))),
                }
            }
            _ => {
                let Some(control) = &self.control else { return unknown(order) };
                let (done, words) = match order.action.as_str() {
                    "pause" => (control.set_paused(&*self.queue, true), "The queue is paused."),
                    "resume" => (control.set_paused(&*self.queue, false), "The queue runs."),
                    "cancel" => {
                        let id = MessageId::new(part.strip_prefix(MESSAGE).unwrap_or_default());
                        let words = "The message ends as a dead letter when its turn comes.";
                        (control.cancel(&*self.queue, id), words)
                    }
                    _ => return unknown(order),
                };
                done.await.map(|()| words.to_owned())
            }
        }
    }
}

fn row(prefix: &str, message: &Peeked, now: Timestamp) -> Row {
    let id = message.id.to_string();
    let hidden = if message.hidden { "hidden" } else { "visible" };
    let state = message.reason.as_deref().unwrap_or(hidden).to_owned();
    let error = message.errors.last().map(|error| error.text.clone()).unwrap_or_default();
    let cells = vec![id.clone(), state, message.attempts.to_string(), error, age(message.sent_at, now)];
    Row { of: Some(format!("{prefix}{id}")), wrong: false, cells }
}

fn age(sent: Timestamp, now: Timestamp) -> String {
    spoken(passed(sent, now))
}

fn passed(sent: Timestamp, now: Timestamp) -> Duration {
    Duration::from_millis(now.as_millis().saturating_sub(sent.as_millis()))
}

/// Adds what the control of the queue can do.
fn offer(out: ReadOut, is_paused: bool, visible: Option<u64>) -> ReadOut {
    if is_paused {
        return out.action("resume", "Resume", "All its listeners take messages again.", true, Note::None);
    }
    let wait = visible.map(|visible| format!(" {} would wait now.", count(visible, "message"))).unwrap_or_default();
    let effect = format!("All its listeners, in each process, take no more messages.{wait} Handlers that run go on.");
    out.action("pause", "Pause", effect, false, Note::None)
}

fn gone() -> ReadOut {
    ReadOut::new("gone")
}

fn words(error: QueueError) -> String {
    error.to_string()
}
