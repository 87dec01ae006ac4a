//! Rights of the user: those that a handle needs, and those whose lack the server tells.
use std::collections::HashMap;

use super::{
    config::NatsConfig,
    names::{Names, Part},
};

/// Number of refusals that are remembered: more than requests that wait at once.
const REMEMBERED: u64 = 4096;

/// A refusal of the server to take a message or a subscription of this handle.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
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

/// The last refusals.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// The number of the last one of each kind and subject.
    last: HashMap<Refused, u64>,
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
        self.last.insert(refused, self.number);
        if self.last.len() as u64 > REMEMBERED {
            let old = self.number - REMEMBERED / 2;
            self.last.retain(|_, number| *number > old);
        }
        self.number
    }

    /// Forgets what held for another connection.
    pub(super) fn reconnected(&mut self) {
        self.answers = None;
    }

    /// Returns the refusal of the answers to all requests. The server may take the requests.
    pub(super) fn of_answers(&self) -> Option<Refused> {
        self.answers.clone()
    }

    /// Returns the refusal, if it is behind this number.
    pub(super) fn of(&self, refused: &Refused, since: u64) -> Option<Refused> {
        let (refused, number) = self.last.get_key_value(refused)?;
        (*number > since).then(|| refused.clone())
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
    // A user's JWT is sent in one line of at most 4,096 bytes: each stream has what is needed of it alone.
    let (store, ids) = (names.store(), names.ids().0);
    let own = queues.iter().flat_map(|queue| [Part::Messages, Part::DeadLetters].map(|part| names.queue(queue, part)));
    let own: Vec<String> = own.collect();
    let claims: Vec<String> = queues.iter().map(|queue| names.claims_stream(queue)).collect();
    for stream in [&store, &ids].into_iter().chain(&claims).chain(&own) {
        publish.extend([format!("{api}.STREAM.*.{stream}"), format!("{api}.STREAM.MSG.*.{stream}")]);
    }
    for stream in std::iter::once(&store).chain(&claims).chain(&own) {
        publish.push(format!("{api}.CONSUMER.*.{stream}.>"));
    }
    // Consumers of readers.
    for stream in std::iter::once(&store).chain(&claims) {
        publish.extend([
            format!("{api}.CONSUMER.*.{stream}"),
            format!("$JS.FC.{stream}.>"),
            format!("$JS.FC.*.*.{stream}.>"),
        ]);
    }
    publish.extend([format!("{api}.DIRECT.GET.{store}")]);
    for stream in &own {
        publish.extend([
            format!("{api}.CONSUMER.MSG.NEXT.{stream}.*"),
            format!("$JS.ACK.{stream}.>"),
            format!("$JS.ACK.*.*.{stream}.>"),
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
        assert_eq!(refusals.of(&publish("a"), 0), Some(publish("a")));
        assert_eq!((refusals.of(&publish("a"), first), refusals.of(&publish("b"), 0)), (None, None));
        assert_eq!(refusals.of_answers(), None);
        let answers = Refused::Subscribe("_INBOX.p.x.*".to_owned());
        refusals.add(answers.clone(), "_INBOX.p");
        assert_eq!((refusals.of(&publish("b"), 0), refusals.of_answers()), (None, Some(answers)));
        refusals.reconnected();
        assert_eq!(refusals.of_answers(), None);
    }

    #[test]
    fn of_a_thousand_refusals_at_once_each_is_found_and_the_memory_has_an_end() {
        let mut refusals = Refusals::default();
        let publish = |i: u64| Refused::Publish(format!("a.{i}"));
        for i in 0..1_000 {
            refusals.add(publish(i), "_INBOX.p");
        }
        for i in 0..1_000 {
            assert_eq!(refusals.of(&publish(i), 0), Some(publish(i)));
        }
        for i in 0..3 * REMEMBERED {
            refusals.add(publish(i), "_INBOX.p");
        }
        assert!(refusals.last.len() as u64 <= REMEMBERED);
        assert_eq!(refusals.of(&publish(3 * REMEMBERED - 1), 0), Some(publish(3 * REMEMBERED - 1)));
    }
}
