//! Rights of the user: those that a handle needs, and those whose lack the server tells.
use std::collections::VecDeque;

use super::{config::NatsConfig, names::Names};

/// Number of refusals that are remembered: a request looks for its own at once.
const REMEMBERED: usize = 64;

/// A refusal of the server to take a message or a subscription of this handle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refused {
    Publish(String),
    Subscribe(String),
}

impl Refused {
    /// Parses the server's words; `None` if they tell something else.
    pub(super) fn parse(words: &str) -> Option<Self> {
        let lower = words.to_ascii_lowercase();
        let what = lower.strip_prefix("permissions violation for ")?;
        // The subject may be in any case.
        let subject = words.split('"').nth(1)?.to_owned();
        match what.split_once(" to ")?.0 {
            "publish" => Some(Self::Publish(subject)),
            "subscription" => Some(Self::Subscribe(subject)),
            _ => None,
        }
    }

    /// Returns the error's text, with the subject.
    pub(super) fn message(&self) -> String {
        let (verb, subject) = match self {
            Self::Publish(subject) => ("publish to", subject),
            Self::Subscribe(subject) => ("subscribe to", subject),
        };
        format!("the user may not {verb} `{subject}`: grant the rights that `Nats::permissions` returns")
    }
}

/// The last refusals, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    last: VecDeque<(u64, Refused)>,
    number: u64,
    /// The subscription for answers was refused: no request of this connection is answered.
    answers: Option<Refused>,
}

impl Refusals {
    /// Records a refusal, and returns its number.
    pub(super) fn add(&mut self, refused: Refused, inbox: &str) -> u64 {
        // The answers' subject is of three parts; a reader's inbox has two, and is told by itself.
        if matches!(&refused, Refused::Subscribe(subject) if subject.starts_with(inbox) && subject.ends_with(".*")) {
            self.answers = Some(refused.clone());
        }
        self.number += 1;
        self.last.push_back((self.number, refused));
        if self.last.len() > REMEMBERED {
            self.last.pop_front();
        }
        self.number
    }

    /// Forgets what held for another connection.
    pub(super) fn reconnected(&mut self) {
        self.answers = None;
    }

    /// Returns the refusal of a request with an answer, behind this number.
    pub(super) fn of_request(&self, subject: &str, since: u64) -> Option<Refused> {
        self.answers.clone().or_else(|| self.of(&Refused::Publish(subject.to_owned()), since))
    }

    /// Returns the refusal, if it is behind this number.
    pub(super) fn of(&self, refused: &Refused, since: u64) -> Option<Refused> {
        let found = self.last.iter().rev().take_while(|(number, _)| *number > since).find(|(_, each)| each == refused);
        found.map(|(_, refused)| refused.clone())
    }
}

/// Returns the start of the subjects to which answers are sent: a user of one prefix hears no
/// answers to others.
pub(super) fn inbox(prefix: &str) -> String {
    format!("_INBOX.{prefix}")
}

/// Returns the rights for a prefix and these queues as JSON.
pub(super) fn permissions(config: &NatsConfig, queues: &[&str]) -> String {
    let names = Names::new(config.prefix.clone());
    let (prefix, api) = (&config.prefix, config.api());
    let mut publish = vec![format!("{prefix}.>")];
    for stream in std::iter::once(names.store()).chain(queues.iter().map(|queue| names.queue(queue))) {
        publish.extend([
            format!("{api}.STREAM.*.{stream}"),
            format!("{api}.STREAM.MSG.*.{stream}"),
            format!("{api}.CONSUMER.*.{stream}"),
            format!("{api}.CONSUMER.*.{stream}.>"),
            format!("{api}.CONSUMER.MSG.NEXT.{stream}.*"),
            format!("{api}.CONSUMER.DURABLE.CREATE.{stream}.*"),
            format!("{api}.DIRECT.GET.{stream}"),
            format!("{api}.DIRECT.GET.{stream}.>"),
            format!("$JS.ACK.{stream}.>"),
            format!("$JS.ACK.*.*.{stream}.>"),
            format!("$JS.FC.{stream}.>"),
            format!("$JS.FC.*.*.{stream}.>"),
        ]);
    }
    let subscribe = [format!("{prefix}.n.>"), format!("{}.>", inbox(prefix))];
    serde_json::json!({ "publish": publish, "subscribe": subscribe }).to_string()
}

#[cfg(all(test, not(steadfast_loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_subject_of_a_refusal_is_read_from_the_servers_words() {
        let publish = "Permissions Violation for Publish to \"$JS.API.STREAM.INFO.a_store\"";
        assert_eq!(Refused::parse(publish), Some(Refused::Publish("$JS.API.STREAM.INFO.a_store".to_owned())));
        let subscription = "Permissions Violation for Subscription to \"a.n.T\" using queue \"q\"";
        assert_eq!(Refused::parse(subscription), Some(Refused::Subscribe("a.n.T".to_owned())));
        for other in
            ["", "Stale Connection", "Permissions Violation for Publish", "Permissions Violation for X to \"a\""]
        {
            assert_eq!(Refused::parse(other), None, "{other}");
        }
    }

    #[test]
    fn a_refusal_is_found_by_its_subject_and_only_behind_the_request() {
        let mut refusals = Refusals::default();
        let publish = |subject: &str| Refused::Publish(subject.to_owned());
        let first = refusals.add(publish("a"), "_INBOX.p");
        assert_eq!(refusals.of_request("a", 0), Some(publish("a")));
        assert_eq!((refusals.of_request("a", first), refusals.of_request("b", 0)), (None, None));
        let answers = Refused::Subscribe("_INBOX.p.x.*".to_owned());
        refusals.add(answers.clone(), "_INBOX.p");
        assert_eq!(refusals.of_request("b", 9), Some(answers));
        refusals.reconnected();
        assert_eq!(refusals.of_request("b", 9), None);
    }
}
