//! The decision which commits share a request: a pure machine.
//!
//! A request is one batch of the store, which takes effect as a whole or is refused as a whole. So
//! a commit shares one only if its own outcome cannot depend on the order within the batch:
//!
//! | it | shares the request |
//! |---|---|
//! | appends to a stream that no earlier commit of it names | yes |
//! | expects of a stream the version that an earlier one leaves | yes; the store checks the first one |
//! | expects another version, or one that is not known | no |
//! | appends to any version of a stream that an earlier one appends to | yes |
//! | has the id, or names a row, of an earlier one | no |
//! | checks a stream to which an earlier one appends, or the reverse | no |
//!
//! A commit that shares no request is sent in a later one.
use std::collections::{BTreeMap, HashMap, HashSet};

use super::commit::{Expected, Job};
use crate::store::{Precondition, PutOptions, Write};

/// Maximum sizes of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) writes: usize,
    pub(super) commits: usize,
}

/// The names that the commits of a request use.
#[derive(Default)]
struct Used<'a> {
    ids: HashSet<&'a str>,
    rows: HashSet<&'a str>,
    /// Streams with the version behind the request, if it is known.
    appended: HashMap<&'a str, Option<u64>>,
    checked: HashSet<&'a str>,
}

impl<'a> Used<'a> {
    fn admits(&self, job: &Job) -> bool {
        let stream_fits = |(stream, expected, _): &(String, Expected, u64)| {
            let known = self.appended.get(stream.as_str());
            let is_expected = match (known, expected) {
                (None, _) | (Some(_), Expected::Any) => true,
                (Some(known), Expected::Version(version)) => *known == Some(*version),
            };
            is_expected && !self.checked.contains(stream.as_str())
        };
        !job.commands.iter().any(|command| self.ids.contains(command.id.as_str()))
            && job.appends.iter().all(stream_fits)
            && !job.expects.iter().any(|stream| self.appended.contains_key(stream.as_str()))
            && !job.writes.iter().filter_map(Write::row).any(|row| self.rows.contains(row))
    }

    fn add(&mut self, job: &'a Job) {
        self.ids.extend(job.commands.iter().map(|command| command.id.as_str()));
        self.rows.extend(job.writes.iter().filter_map(Write::row));
        self.checked.extend(job.expects.iter().map(String::as_str));
        for (stream, expected, count) in &job.appends {
            let before = match expected {
                Expected::Version(version) => Some(*version),
                Expected::Any => self.appended.get(stream.as_str()).copied().flatten(),
            };
            self.appended.insert(stream, before.map(|before| before.saturating_add(*count)));
        }
    }
}

/// Divides waiting commits into those of the next request, and the others. Both keep their order.
pub(super) fn share(jobs: &[Job], waiting: &[usize], limits: Limits) -> (Vec<usize>, Vec<usize>) {
    let (mut request, mut others, mut used, mut writes) = (Vec::new(), Vec::new(), Used::default(), 0);
    for &i in waiting {
        let job = &jobs[i];
        let fits = request.len() < limits.commits && writes + job.writes.len() <= limits.writes;
        if request.is_empty() || fits && used.admits(job) {
            writes += job.writes.len();
            used.add(job);
            request.push(i);
        } else {
            others.push(i);
        }
    }
    (request, others)
}

/// Required states of id rows, by the index of the write. The others are required to be absent.
pub(super) type Guards = BTreeMap<usize, Precondition>;

/// Returns the writes of a request.
pub(super) fn writes(jobs: &[Job], request: &[usize], guards: &Guards) -> Vec<Write> {
    let mut appended: HashSet<String> = HashSet::new();
    let mut writes: Vec<Write> = Vec::new();
    for &i in request {
        for write in &jobs[i].writes {
            let mut write = write.clone();
            match &mut write {
                // The version behind the earlier commits is known: the first of them requires its own.
                Write::Append { sequence, after, .. } if !appended.insert(sequence.clone()) => *after = None,
                Write::Put { options, .. } => {
                    let guard = guards.get(&writes.len()).copied();
                    *options = PutOptions { when: guard.unwrap_or(options.when), ..*options };
                }
                _ => {}
            }
            writes.push(write);
        }
    }
    writes
}

/// Divides the commits of a refused request into chains. Those of a chain name a stream in common,
/// and are sent one after the other; chains are sent beside each other.
pub(super) fn chains(jobs: &[Job], request: &[usize]) -> Vec<Vec<usize>> {
    let streams = |i: usize| jobs[i].appends.iter().map(|(stream, ..)| stream);
    let mut chains: Vec<Vec<usize>> = Vec::new();
    for &i in request {
        let meets = |chain: &Vec<usize>| {
            chain.iter().any(|other| streams(*other).any(|stream| streams(i).any(|own| own == stream)))
        };
        let (met, apart): (Vec<_>, Vec<_>) = chains.into_iter().partition(meets);
        let mut chain: Vec<usize> = met.into_iter().flatten().collect();
        chain.sort_unstable();
        chain.push(i);
        chains = apart;
        chains.push(chain);
    }
    chains
}
