//! The machines of a log: the stored form, and which commits share a request.
#![allow(clippy::unwrap_used, reason = "tests")]
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use proptest::prelude::*;

use super::{
    Commit, CommitError, EventStore, Expected, NewEvent, StoredCommit, StoredEvent,
    commit::{Append, Context, Job},
    send::{Answer, Done, Requests},
    state::{self, Guards, Limits},
    stored::{self, IdRow, Snapshot},
};
use crate::{
    gather::SendBatch,
    port::{Capabilities, PortErrorKind},
    queue::Message,
    store::{InMemoryStore, Precondition, Store, Write},
    time::Timestamp,
};

fn event() -> impl Strategy<Value = NewEvent> {
    let text = || proptest::string::string_regex("[a-z日/]{0,6}").unwrap();
    let headers = proptest::collection::btree_map(text(), text(), 0..3);
    (text(), any::<u32>(), proptest::collection::vec(any::<u8>(), 0..40), headers)
        .prop_map(|(kind, schema, body, headers)| NewEvent { kind, schema, body: body.into(), headers })
}

/// Asserts that each cut of a form is refused, that each damaged byte is refused or read, and that
/// a higher format is named as such.
fn is_robust<T>(whole: &Bytes, read: impl Fn(Bytes) -> Result<T, crate::port::PortError>) {
    for end in 0..whole.len() {
        assert!(read(whole.slice(..end)).is_err(), "cut at {end}");
        let mut damaged = whole.to_vec();
        damaged[end] ^= 0x55;
        drop(read(damaged.into()));
    }
    let mut longer = whole.to_vec();
    longer.push(0);
    assert_eq!(read(longer.into()).err().map(|error| error.kind()), Some(PortErrorKind::Corrupt));
    let mut newer = whole.to_vec();
    newer[0] = 2;
    assert_eq!(read(newer.into()).err().map(|error| error.kind()), Some(PortErrorKind::TooNew));
}

proptest! {
    #[test]
    fn stored_forms_come_back_and_damage_is_no_panic(
        events in proptest::collection::vec(event(), 1..4), after in proptest::option::of(0..99_u64), at in any::<u64>(),
    ) {
        let at = Timestamp::from_millis(at);
        let expected = after.map_or(Expected::Any, Expected::Version);
        let message = Message::new(events[0].body.clone()).group("g").header("h", "v");
        let messages = [("mails".to_owned(), message.delay(Duration::from_secs(3))), ("日".to_owned(), Message::new("m"))];
        let append = Append { stream: "a/b".into(), expected, events: events.clone() };
        let value = stored::encode_commit(at, "cmd", &[append.clone(), append], &messages);
        let commit = StoredCommit::decode(7, value.clone()).unwrap();
        prop_assert_eq!((commit.number, commit.command.as_str(), commit.at), (7, "cmd", at));
        let versions: Vec<_> = commit.events.iter().map(|event| event.version).collect();
        let once: Vec<_> = (1..=events.len() as u64).map(|nth| after.map(|after| after + nth)).collect();
        prop_assert_eq!(versions, [once.clone(), once].concat());
        prop_assert_eq!(commit.events.into_iter().map(|event| event.event).collect::<Vec<_>>(), [events.clone(), events.clone()].concat());
        is_robust(&value, |value| {
            let (head, whole) = (StoredCommit::decode_head(7, value.clone()), StoredCommit::decode(7, value));
            let of_whole = whole.as_ref().map(|commit| {
                (commit.command.clone(), commit.events.first().map(|event| event.stream.clone()))
            });
            assert_eq!(head.map_err(|error| error.to_string()), of_whole.map_err(ToString::to_string));
            whole
        });
        prop_assert_eq!(&commit.messages[..], &messages[..]);

        let value = stored::encode_event(at, "cmd", &events[0]);
        let stored = StoredEvent::decode("e", 3, value.clone()).unwrap();
        prop_assert_eq!((stored.version, &stored.event, stored.at), (3, &events[0], at));
        is_robust(&value, |value| StoredEvent::decode("e", 3, value));

        let snapshot = Snapshot { schema: 3, version: 41, state: events[0].body.clone() };
        prop_assert_eq!(&Snapshot::decode("p", snapshot.encode()).unwrap(), &snapshot);
        is_robust(&snapshot.encode(), |value| Snapshot::decode("p", value));
    }
}

#[test]
fn rows_of_ids_claims_and_the_log_come_back_and_damage_is_no_panic() {
    for row in [IdRow::Used { request: (1, u64::MAX), stream: "日".into() }, IdRow::Void { request: (0, 300) }] {
        assert_eq!(IdRow::decode("k", row.encode()).unwrap(), row);
        is_robust(&row.encode(), |value| IdRow::decode("k", value));
    }
    let claim = stored::encode_claim("conf-7", "cmd");
    assert_eq!(stored::decode_claim("q", claim.clone()).unwrap(), "conf-7");
    is_robust(&claim, |value| stored::decode_claim("q", value));
    assert_eq!(stored::decode_checkpoint("o", stored::encode_checkpoint(300)).unwrap(), 300);
    is_robust(&stored::encode_checkpoint(300), |value| stored::decode_checkpoint("o", value));
    let log = stored::encode_log("identity");
    assert_eq!(stored::decode_log(log.clone()).unwrap(), "identity");
    is_robust(&log, stored::decode_log);
}

const LIMITS: Limits = Limits { writes: 100, commits: 8 };

fn prepared(commit: Commit, request: u64) -> Job {
    let can: Capabilities = InMemoryStore::new().capabilities();
    let remember = Duration::from_secs(3600);
    let at = Timestamp::from_millis(0);
    let outboxes = BTreeMap::new();
    commit
        .prepare(&Context {
            partition: "events/log",
            can: &can,
            outboxes: &outboxes,
            remember,
            request: (request, 0),
            at,
        })
        .unwrap()
}

fn jobs(commits: impl IntoIterator<Item = Commit>) -> Vec<Job> {
    (1..).zip(commits).map(|(request, commit)| prepared(commit, request)).collect()
}

fn one() -> [NewEvent; 1] {
    [NewEvent::new("A", "")]
}

/// Returns the commits of each request, by their indexes.
fn requests(commits: impl IntoIterator<Item = Commit>, limits: Limits) -> Vec<Vec<usize>> {
    let jobs = jobs(commits);
    let (mut requests, mut waiting) = (Vec::new(), (0..jobs.len()).collect::<Vec<_>>());
    while !waiting.is_empty() {
        let (request, others) = state::share(&jobs, &waiting, limits);
        requests.push(request);
        waiting = others;
    }
    requests
}

#[test]
fn a_commit_shares_a_request_unless_its_outcome_depends_on_an_earlier_one() {
    use Expected::{Any, Version};
    let append = |id: &str, stream: &str, expected| Commit::new(id).append(stream, expected, one());
    let shares = |first: Commit, second: Commit| requests([first, second], LIMITS).len() == 1;
    let first = || append("1", "a", Version(4));
    assert!(shares(first(), append("2", "b", Version(9))), "another stream");
    assert!(shares(first(), append("2", "a", Version(5))), "the version behind the first");
    assert!(shares(first(), append("2", "a", Any)), "any version");
    assert!(shares(append("1", "a", Any), append("2", "a", Any)), "any version twice");
    assert!(!shares(first(), append("2", "a", Version(4))), "the version before the first");
    assert!(!shares(append("1", "a", Any), append("2", "a", Version(5))), "a version that is not known");
    assert!(!shares(first(), append("1", "b", Any)), "the same command");
    assert!(!shares(first(), append("2", "b", Any).expect("a", 5)), "a check of what the first writes");
    assert!(!shares(append("1", "b", Any).expect("a", 5), append("2", "a", Any)), "a write of what the first checks");
    assert!(!shares(first().claim("c"), append("2", "b", Any).release("c")), "a claim of the first");
    let row = || Write::put("u/1", "", Precondition::Any);
    assert!(!shares(first().write(row()), append("2", "b", Any).write(row())), "a row of the first");
}

#[test]
fn a_request_has_at_most_so_many_commits_and_writes() {
    let all = |n: usize| (0..n).map(|i| Commit::new(i.to_string()).append("a", Expected::Any, one()));
    assert_eq!(requests(all(10), LIMITS).iter().map(Vec::len).collect::<Vec<_>>(), [8, 2]);
    // Each has three writes.
    let limits = Limits { writes: 8, commits: 8 };
    assert_eq!(requests(all(5), limits).iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 1]);
}

#[test]
fn only_the_first_append_to_a_stream_requires_its_version_and_guards_replace_absence() {
    let jobs = jobs([4, 5].map(|at| Commit::new(at.to_string()).append("a", Expected::Version(at), one())));
    let writes = state::writes(&jobs, &[0, 1], &Guards::from([(3, Precondition::Any)]));
    let afters = writes.iter().filter_map(|write| match write {
        Write::Append { sequence, after, .. } if sequence == "e/1/a/" => Some(*after),
        _ => None,
    });
    assert_eq!(afters.collect::<Vec<_>>(), [Some(4), None]);
    let guards: Vec<_> = writes.iter().filter(|write| write.row().is_some()).map(Write::when).collect();
    assert_eq!(guards, [Precondition::Absent, Precondition::Any]);
}

#[test]
fn commits_with_a_stream_in_common_are_one_chain() {
    let of = |id: &str, streams: &[&str]| {
        streams.iter().fold(Commit::new(id), |commit, stream| commit.append(*stream, Expected::Any, one()))
    };
    let jobs = jobs([of("1", &["a"]), of("2", &["b"]), of("3", &["c"]), of("4", &["a", "b"]), of("5", &["c"])]);
    let mut chains = state::chains(&jobs, &[0, 1, 2, 3, 4]);
    chains.sort();
    assert_eq!(chains, [vec![0, 1, 3], vec![2, 4]]);
}

/// A commit of the model.
#[derive(Debug, Clone)]
struct Spec {
    id: u8,
    appends: BTreeMap<u8, (Option<u64>, usize)>,
    expect: Option<(u8, u64)>,
    claim: Option<u8>,
    release: Option<u8>,
    row: Option<bool>,
}

fn spec() -> impl Strategy<Value = Spec> {
    let append = (proptest::option::weighted(0.7, 0..4_u64), 1..3_usize);
    let appends = proptest::collection::btree_map(0..3_u8, append, 1..3);
    let expect = proptest::option::weighted(0.2, (0..4_u8, 0..3_u64));
    let claim = proptest::option::weighted(0.2, 0..2_u8);
    let release = proptest::option::weighted(0.2, 0..2_u8);
    let row = proptest::option::weighted(0.2, any::<bool>());
    (0..12_u8, appends, expect, claim, release, row).prop_map(|(id, appends, expect, claim, release, row)| {
        let expect = expect.filter(|(stream, _)| !appends.contains_key(stream));
        let release = release.filter(|release| Some(*release) != claim);
        Spec { id, appends, expect, claim, release, row }
    })
}

impl Spec {
    fn commit(&self) -> Commit {
        let mut commit = Commit::new(format!("i{}", self.id));
        for (stream, (expected, events)) in &self.appends {
            let expected = expected.map_or(Expected::Any, Expected::Version);
            commit = commit.append(format!("s{stream}"), expected, vec![NewEvent::new("A", ""); *events]);
        }
        if let Some((stream, version)) = self.expect {
            commit = commit.expect(format!("s{stream}"), version);
        }
        if let Some(claim) = self.claim {
            commit = commit.claim(format!("c{claim}"));
        }
        if let Some(release) = self.release {
            commit = commit.release(format!("c{release}"));
        }
        if let Some(is_first) = self.row {
            let when = if is_first { Precondition::Absent } else { Precondition::Any };
            commit = commit.write(Write::put("u/row", "", when));
        }
        commit
    }
}

/// The state of a log that applies one commit after the other.
#[derive(Debug, Clone, Default)]
struct Naive {
    ids: BTreeMap<u8, u8>,
    streams: BTreeMap<u8, u64>,
    claims: BTreeSet<u8>,
    has_row: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Said {
    Done,
    Repeated,
    Reused,
    Conflict { stream: String, expected: u64, actual: u64 },
    Taken(String),
    Row,
}

impl Naive {
    fn version(&self, stream: u8) -> u64 {
        self.streams.get(&stream).copied().unwrap_or(0)
    }

    fn apply(&mut self, spec: &Spec) -> Said {
        let first = *spec.appends.keys().next().unwrap();
        if let Some(of) = self.ids.get(&spec.id) {
            return if *of == first { Said::Repeated } else { Said::Reused };
        }
        let expected = spec.appends.iter().filter_map(|(stream, (expected, _))| Some((*stream, (*expected)?)));
        let expected: Vec<_> = spec.expect.into_iter().chain(expected).collect();
        let conflict = |(stream, expected): (u8, u64)| {
            let actual = self.version(stream);
            (actual != expected).then(|| Said::Conflict { stream: format!("s{stream}"), expected, actual })
        };
        if let Some(conflict) = spec.expect.and_then(conflict) {
            return conflict;
        }
        if let Some(claim) = spec.claim.filter(|claim| self.claims.contains(claim)) {
            return Said::Taken(format!("c{claim}"));
        }
        if spec.row == Some(true) && self.has_row {
            return Said::Row;
        }
        if let Some(conflict) = expected.into_iter().find_map(conflict) {
            return conflict;
        }
        self.ids.insert(spec.id, first);
        for (stream, (_, events)) in &spec.appends {
            *self.streams.entry(*stream).or_default() += *events as u64;
        }
        self.claims.extend(spec.claim);
        if let Some(release) = spec.release {
            self.claims.remove(&release);
        }
        self.has_row |= spec.row.is_some();
        Said::Done
    }
}

fn said(answer: &Answer) -> Said {
    match answer {
        Ok(Done::Committed(_)) => Said::Done,
        Ok(Done::Repeated { .. }) => Said::Repeated,
        Err(CommitError::CommandReused { .. }) => Said::Reused,
        Err(CommitError::Conflict { stream, expected, actual }) => {
            Said::Conflict { stream: stream.clone(), expected: *expected, actual: *actual }
        }
        Err(CommitError::Taken { claim, .. }) => Said::Taken(claim.clone()),
        Err(CommitError::RowConflict { .. }) => Said::Row,
        Err(other) => panic!("{other}"),
    }
}

proptest! {
    // Guarantee: event_sourcing 2, 5.
    #[test]
    fn commits_that_meet_are_answered_as_by_a_naive_model_in_the_order_of_their_numbers(
        before in proptest::collection::vec(spec(), 0..5), batch in proptest::collection::vec(spec(), 1..16),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let log = EventStore::open(Arc::new(InMemoryStore::new()), "log").await.unwrap();
            let mut naive = Naive::default();
            for spec in &before {
                let expected = naive.apply(spec);
                let answer = Requests(log.inner.clone()).send(vec![log.inner.prepare(spec.commit()).unwrap()]).await;
                assert_eq!(said(&answer[0]), expected, "{spec:?}");
            }
            let jobs: Vec<_> = batch.iter().map(|spec| log.inner.prepare(spec.commit()).unwrap()).collect();
            let answers = Requests(log.inner.clone()).send(jobs).await;
            let number = |answer: &Answer| match answer {
                Ok(Done::Committed(done)) => Some(done[0].token.number()),
                _ => None,
            };
            let mut order: Vec<_> = batch.iter().zip(&answers).filter_map(|(spec, a)| Some((number(a)?, spec))).collect();
            order.sort_by_key(|(number, _)| *number);
            // The states before and behind each commit that took effect.
            let mut states = vec![naive];
            for (_, spec) in order {
                let mut next = states.last().unwrap().clone();
                assert_eq!(next.apply(spec), Said::Done, "{spec:?}");
                states.push(next);
            }
            for (spec, answer) in batch.iter().zip(&answers).filter(|(_, answer)| number(answer).is_none()) {
                let told = said(answer);
                let is_right = states.iter().any(|state| state.clone().apply(spec) == told);
                assert!(is_right, "{spec:?}: {told:?} of {states:#?}");
            }
        });
    }
}
