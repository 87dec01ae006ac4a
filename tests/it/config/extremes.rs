//! Every configuration type with each setting at its extremes, alone and in pairs: each is refused by name, or
//! works. None panics, and none blocks its thread. Fields and the variants of enumerations are found in documents and in serde's messages, so a new field is
//! covered without being listed here; a new type that has no subject fails the last test.
use std::{
    collections::BTreeSet,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
        mpsc,
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use steadfast::{
    ConfigError,
    config::human,
    entropy::Entropy,
    time::{Instant, ManualClock},
};
use toml::Value;

use crate::config::extremes_subjects::subjects;

/// One configuration type: documents that together contain all its fields, and a function that builds and uses
/// a component.
pub(crate) struct Subject {
    pub(crate) name: &'static str,
    pub(crate) documents: Vec<Value>,
    pub(crate) attempt: Box<dyn Fn(&Value) -> Outcome + Send>,
    /// Maximum number of pairs; all of them, unless they are slow or very many.
    pub(crate) pairs: usize,
}

#[derive(Debug)]
pub(crate) enum Outcome {
    /// Serde refuses the document, with this message.
    Unreadable(String),
    /// The component refuses the configuration, naming this field.
    Refused(ConfigError),
    Works,
}

pub(crate) fn subject<C: DeserializeOwned + Serialize>(
    name: &'static str,
    documents: Vec<C>,
    uses: impl Fn(C) -> Result<(), ConfigError> + Send + 'static,
) -> Subject {
    let documents = documents.into_iter().map(|config| Value::try_from(config).unwrap()).collect();
    let attempt = move |document: &Value| {
        let read = if holds_big(document) {
            serde_json::from_value::<C>(as_json(document)).map_err(|e| e.to_string())
        } else {
            C::deserialize(document.clone()).map_err(|e| e.to_string())
        };
        match read.map(&uses) {
            Err(told) => Outcome::Unreadable(told),
            Ok(Err(refused)) => Outcome::Refused(refused),
            Ok(Ok(())) => Outcome::Works,
        }
    };
    Subject { name, documents, attempt: Box::new(attempt), pairs: 2_000 }
}

/// A placeholder for the largest number of 64 bits, which a TOML document cannot contain.
const BIG: &str = "\u{1}the largest number of 64 bits";

fn holds_big(value: &Value) -> bool {
    match value {
        Value::String(text) => text == BIG,
        Value::Array(all) => all.iter().any(holds_big),
        Value::Table(all) => all.values().any(holds_big),
        _ => false,
    }
}

fn as_json(value: &Value) -> serde_json::Value {
    match value {
        Value::String(text) if text == BIG => u64::MAX.into(),
        Value::Array(all) => all.iter().map(as_json).collect(),
        Value::Table(all) => all.iter().map(|(key, value)| (key.clone(), as_json(value))).collect(),
        other => serde_json::to_value(other).unwrap(),
    }
}

/// Maximum time for a document on a busy machine.
const LONGEST: Duration = Duration::from_secs(20);

/// Polls the future to its end and lets time pass whenever it waits; stops after a bounded number of steps.
pub(crate) fn drive<F: Future>(time: &ManualClock, future: F) -> Option<F::Output> {
    struct Woken(AtomicBool);
    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, SeqCst);
        }
    }
    let woken = Arc::new(Woken(AtomicBool::new(true)));
    let waker = Waker::from(woken.clone());
    let mut future = pin!(future);
    let mut at_one_instant = 0;
    for _ in 0..40 {
        while woken.0.swap(false, SeqCst) {
            at_one_instant += 1;
            assert!(at_one_instant < 2_000, "it wakes itself for ever, and time does not pass");
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return Some(output);
            }
        }
        // A timer at the end of time never falls due.
        let next = time.next_timer().filter(|at| *at < Instant::FAR_FUTURE)?;
        if next > time.now() {
            at_one_instant = 0;
        }
        time.advance_to(next);
        woken.0.store(true, SeqCst);
    }
    None
}

#[derive(Serialize, Deserialize)]
struct Time {
    #[serde(with = "human")]
    time: Duration,
}

fn time(time: Duration) -> Value {
    Value::try_from(Time { time }).unwrap()["time"].clone()
}

fn is_time(value: &Value) -> bool {
    Time::deserialize(toml::Table::from_iter([("time".to_owned(), value.clone())])).is_ok()
}

/// The path of a value in a document.
type Path = Vec<String>;

fn leaves(value: &Value, at: &Path, found: &mut Vec<Path>) {
    found.push(at.clone());
    let deeper = |key: String| at.iter().cloned().chain([key]).collect();
    match value {
        Value::Table(all) => all.iter().for_each(|(key, value)| leaves(value, &deeper(key.clone()), found)),
        Value::Array(all) => all.iter().enumerate().for_each(|(i, value)| leaves(value, &deeper(i.to_string()), found)),
        _ => {}
    }
}

fn find<'a>(document: &'a mut Value, path: &[String]) -> Option<&'a mut Value> {
    path.iter().try_fold(document, |value, key| match value {
        Value::Table(all) => all.get_mut(key),
        Value::Array(all) => all.get_mut(key.parse::<usize>().ok()?),
        _ => None,
    })
}

/// Returns the document with another value at this path, or with none; `None` if the path does not exist.
fn with(document: &Value, path: &[String], value: Option<&Value>) -> Option<Value> {
    let mut document = document.clone();
    let (last, parents) = path.split_last()?;
    match (find(&mut document, parents)?, value) {
        (Value::Table(all), Some(value)) => _ = all.insert(last.clone(), value.clone()),
        (Value::Table(all), None) => _ = all.remove(last)?,
        (parent @ Value::Array(_), Some(value)) => *find(parent, std::slice::from_ref(last))? = value.clone(),
        _ => return None,
    }
    Some(document)
}

/// Returns the names between backticks after "expected": serde's list of fields or variants.
fn expected(told: &str) -> Vec<String> {
    let line = told.lines().next().unwrap_or_default();
    let list = line.split_once("expected").map_or("", |(_, list)| list);
    list.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Returns hostile values of the type at this path. `None` omits the field.
fn hostile(subject: &Subject, document: &Value, path: &[String]) -> Vec<Option<Value>> {
    let mut scratch = document.clone();
    let value = find(&mut scratch, path).unwrap().clone();
    let mut values: Vec<Option<Value>> = vec![None];
    match &value {
        Value::Integer(_) => {
            values.extend([0, 1, i64::from(u32::MAX), i64::MAX].map(|n| Some(Value::Integer(n))));
            values.push(Some(Value::String(BIG.to_owned())));
        }
        Value::Float(_) => {
            let all = [0.0, 1.0, f64::MIN_POSITIVE, f64::MAX, f64::MIN, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
            values.extend(all.map(|x| Some(Value::Float(x))));
        }
        Value::Boolean(_) => values.extend([true, false].map(|b| Some(Value::Boolean(b)))),
        Value::String(_) if is_time(&value) => {
            let all = [Duration::ZERO, Duration::from_nanos(1), Duration::from_secs(1), Duration::MAX];
            values.extend(all.map(|d| Some(time(d))));
        }
        Value::String(_) => {
            let no_such = with(document, path, Some(&Value::String("no such variant".to_owned()))).unwrap();
            match (subject.attempt)(&no_such) {
                Outcome::Unreadable(told) if told.contains("unknown variant") => {
                    values.extend(expected(&told).into_iter().map(|name| Some(Value::String(name))));
                }
                _ => values.extend([String::new(), "x".repeat(5_000)].map(|text| Some(Value::String(text)))),
            }
        }
        Value::Array(_) => values.push(Some(Value::Array(Vec::new()))),
        _ => {}
    }
    values
}

struct Tried {
    works: usize,
    refused: usize,
    failed: Vec<String>,
}

/// Tries the subject with all documents; sends each to `told` before it begins.
fn try_all(subject: &Subject, told: &mpsc::Sender<String>) -> Tried {
    let mut tried = Tried { works: 0, refused: 0, failed: Vec::new() };
    let mut paths = Vec::new();
    subject.documents.iter().for_each(|document| leaves(document, &Path::new(), &mut paths));
    let fields: BTreeSet<String> = paths.into_iter().filter_map(|mut path| path.pop()).collect();
    let mut attempt = |document: &Value, changed: &str| {
        told.send(changed.to_owned()).unwrap();
        match catch_unwind(AssertUnwindSafe(|| (subject.attempt)(document))) {
            Ok(Outcome::Works) => tried.works += 1,
            Ok(Outcome::Unreadable(_)) => tried.refused += 1,
            Ok(Outcome::Refused(refused)) => {
                tried.refused += 1;
                let named = refused.field().rsplit('.').next().unwrap_or_default();
                if !fields.contains(named) || refused.rule().is_empty() {
                    tried.failed.push(format!("{changed} is refused, but by no field's name: {refused}"));
                }
            }
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or(panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                tried.failed.push(format!("{changed}: panics: {}", text.unwrap_or_default()));
            }
        }
    };
    for document in &subject.documents {
        attempt(document, "as given");
        let mut paths = Vec::new();
        leaves(document, &Path::new(), &mut paths);
        let changes: Vec<(Path, Option<Value>)> = paths
            .into_iter()
            .filter(|path| !path.is_empty())
            .flat_map(|path| hostile(subject, document, &path).into_iter().map(move |value| (path.clone(), value)))
            .collect();
        let say = |(path, value): &(Path, Option<Value>)| {
            let value = value.as_ref().map_or("absent".to_owned(), ToString::to_string);
            format!("{} = {value:.60}", path.join("."))
        };
        let mut pairs = Vec::new();
        for (i, one) in changes.iter().enumerate() {
            if let Some(document) = with(document, &one.0, one.1.as_ref()) {
                attempt(&document, &say(one));
            }
            pairs.extend(changes[i + 1..].iter().filter(|other| other.0 != one.0).map(|other| (one, other)));
        }
        // Of too many pairs, always the same selection.
        let entropy = Entropy::from_seed(1);
        let share = subject.pairs as f64 / subject.documents.len() as f64 / pairs.len() as f64;
        for (one, other) in pairs.into_iter().filter(|_| entropy.unit() < share) {
            let first = with(document, &one.0, one.1.as_ref());
            if let Some(document) = first.and_then(|document| with(&document, &other.0, other.1.as_ref())) {
                attempt(&document, &format!("{}, {}", say(one), say(other)));
            }
        }
    }
    tried
}

#[test]
#[ignore = "takes seconds: `.ci/run` runs it"]
fn each_setting_at_its_extremes_alone_and_in_pairs_is_refused_by_name_or_works() {
    let failed = Arc::new(Mutex::new(Vec::new()));
    for subject in subjects() {
        let name = subject.name;
        let (told, hears) = mpsc::channel();
        let failures = failed.clone();
        let thread = std::thread::spawn(move || {
            let tried = try_all(&subject, &told);
            assert!(tried.works > 0 && tried.refused > 0, "{name}: {} work, {} refused", tried.works, tried.refused);
            let all = tried.failed.len();
            let first = tried.failed.into_iter().take(12).map(|text| format!("{name}: {text}"));
            failures.lock().unwrap().extend(first);
            if all > 12 {
                failures.lock().unwrap().push(format!("{name}: and {} more", all - 12));
            }
            println!("{name}: {} documents work, {} are refused, {all} fail", tried.works, tried.refused);
        });
        let mut last = String::new();
        loop {
            match hears.recv_timeout(LONGEST) {
                Ok(document) => last = document,
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    assert!(thread.join().is_ok(), "{name}, after {last}");
                    break;
                }
                // The blocked thread is abandoned.
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    failed.lock().unwrap().push(format!("{name}: the thread does not come back from {last}"));
                    break;
                }
            }
        }
    }
    let failed = failed.lock().unwrap();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// A document may omit optional fields, so the list of fields comes from serde's messages.
#[test]
fn the_documents_of_the_extremes_give_every_field() {
    for subject in subjects() {
        let mut missing = BTreeSet::new();
        for document in &subject.documents {
            let mut paths = Vec::new();
            leaves(document, &Path::new(), &mut paths);
            for path in paths {
                let mut scratch = document.clone();
                let Some(Value::Table(table)) = find(&mut scratch, &path) else { continue };
                table.insert("no_such_field".to_owned(), Value::Integer(1));
                let Outcome::Unreadable(told) = (subject.attempt)(&scratch) else { continue };
                if told.contains("unknown field `no_such_field`") {
                    let given = |field: &String| {
                        subject.documents.iter().any(|document| {
                            let deeper: Path = path.iter().cloned().chain([field.clone()]).collect();
                            find(&mut document.clone(), &deeper).is_some()
                        })
                    };
                    let fields = expected(&told).into_iter().filter(|field| !given(field));
                    missing.extend(fields.map(|field| format!("{}.{field}", path.join("."))));
                }
            }
        }
        assert!(missing.is_empty(), "{}: no document gives {missing:?}", subject.name);
    }
}

/// Types that are parts of another subject's documents.
const PARTS: [&str; 12] = [
    "StaleConfig",
    "RemoteConfig",
    "IdleConfig",
    "ChaosRule",
    "LatencyConfig",
    "PercentileConfig",
    "TripConfig",
    "OpenConfig",
    "HalfOpenConfig",
    "SlowStartConfig",
    "PriorityShares",
    "Limits",
];

/// Settings of servers. They are not compiled here, and `tests/engines` has their tests.
const OF_SERVERS: [&str; 4] = ["NatsConfig", "PostgresConfig", "RedisConfig", "TlsConfig"];

/// Settings of consoles, of gates, of probers, of tokens and of buckets. Most are not compiled here, and targets `edge` and
/// `operations` have their tests.
const OF_THE_EDGE: [&str; 9] = [
    "ConsoleConfig",
    "GateConfig",
    "HandOverConfig",
    "ProberConfig",
    "SiteConfig",
    "TokenVerifierConfig",
    "TrustedHostConfig",
    "UploadConfig",
    "ValetKeyConfig",
];

#[test]
fn every_configuration_type_of_the_crate_is_a_subject_of_the_extremes() {
    fn read(folder: &std::path::Path, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                read(&path, found);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            // From the derive to the name there are only attributes.
            for after in text.split("Deserialize").skip(1) {
                let name = after.split_once("pub struct ").filter(|(between, _)| between.lines().count() < 6);
                found.extend(
                    name.map(|(_, rest)| rest.split(|c: char| !c.is_alphanumeric()).next().unwrap().to_owned()),
                );
            }
        }
    }
    let mut types = BTreeSet::new();
    read(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut types);
    let known = subjects().into_iter().map(|subject| subject.name).chain(PARTS).chain(OF_SERVERS).chain(OF_THE_EDGE);
    let known: BTreeSet<String> = known.map(str::to_owned).collect();
    let types: BTreeSet<String> =
        types.into_iter().filter(|name| name.ends_with("Config") || known.contains(name)).collect();
    assert_eq!(types, known);
}
