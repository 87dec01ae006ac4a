//! The transaction over parts, against a naive model.
use proptest::prelude::*;

use super::transaction::{Failed, Part, Refusal, apply, plan};
use crate::{
    config::{ConfigError, Effect},
    sync::Mutex,
};

const PARTS: usize = 5;

/// Settings of five parts, and something that no part takes.
type Settings = [u32; PARTS + 1];

/// A part that may refuse, and that fails at the calls which are listed.
struct Scripted {
    at: usize,
    name: String,
    runs: Mutex<u32>,
    calls: Mutex<Vec<bool>>,
    refuses: bool,
}

impl Part<Settings> for Scripted {
    fn name(&self) -> &str {
        &self.name
    }
    fn differs(&self, one: &mut Settings, other: &mut Settings) -> bool {
        one[self.at] != other[self.at]
    }
    fn copy(&self, from: &mut Settings, into: &mut Settings) {
        into[self.at] = from[self.at];
    }
    fn validate(&self, _: &mut Settings) -> Result<Effect, ConfigError> {
        if self.refuses { Err(ConfigError::new("x", "must not be")) } else { Ok(Effect::InPlace) }
    }
    fn apply(&self, settings: &mut Settings) -> Result<(), ConfigError> {
        // Those that are left fail, one after another.
        if self.calls.lock().pop() == Some(true) {
            return Err(ConfigError::new("x", "failed"));
        }
        *self.runs.lock() = settings[self.at];
        Ok(())
    }
}

fn parts(refuses: Option<usize>, fails: &[Vec<bool>]) -> Vec<Scripted> {
    let part = |at: usize| Scripted {
        at,
        name: at.to_string(),
        runs: Mutex::new(0),
        calls: Mutex::new(fails.get(at).cloned().unwrap_or_default()),
        refuses: refuses == Some(at),
    };
    (0..PARTS).map(part).collect()
}

fn runs(parts: &[Scripted]) -> Vec<u32> {
    parts.iter().map(|part| *part.runs.lock()).collect()
}

proptest! {
    // Guarantee: reconfiguration 1.
    // Guarantee: reconfiguration 2.
    // Guarantee: reconfiguration 3.
    #[test]
    fn a_change_is_in_all_parts_or_in_none_or_names_those_that_are_left_with_it(
        next in prop::array::uniform6(0u32..3),
        refuses in prop::option::of(0..PARTS + 3),
        fails in prop::collection::vec(prop::collection::vec(any::<bool>(), 0..3), PARTS),
    ) {
        let (now, scripted) = ([0; PARTS + 1], parts(refuses, &fails));
        let all: Vec<&dyn Part<Settings>> = scripted.iter().map(|part| part as _).collect();
        let changes: Vec<usize> = (0..PARTS).filter(|at| next[*at] != 0).collect();
        let planned = plan(&all, &[], &now, &next);
        if let Some(first) = changes.iter().find(|at| refuses == Some(**at)) {
            prop_assert!(matches!(planned, Err(Refusal::Vetoed(at, _)) if at == *first));
            prop_assert_eq!(runs(&scripted), vec![0; PARTS]);
            return Ok(());
        }
        if next[PARTS] != 0 {
            prop_assert!(matches!(planned, Err(Refusal::Undeclared)));
            prop_assert_eq!(runs(&scripted), vec![0; PARTS]);
            return Ok(());
        }
        let planned = planned.unwrap();
        prop_assert_eq!(&planned, &changes);
        // The naive model: the last entry of a list says whether the first call fails, the one before the second.
        let fails_at = |at: usize, call: usize| fails[at].iter().rev().nth(call) == Some(&true);
        let failing = changes.iter().position(|at| fails_at(*at, 0));
        match (apply(&all, &planned, &now, &next), failing) {
            (Ok(()), None) => prop_assert_eq!(runs(&scripted), next[..PARTS].to_vec()),
            (Err(Failed { part, left, .. }), Some(position)) => {
                prop_assert_eq!(part, changes[position]);
                let expected: Vec<usize> =
                    changes[..position].iter().rev().copied().filter(|at| fails_at(*at, 1)).collect();
                let named: Vec<usize> = left.iter().map(|(at, _)| *at).collect();
                prop_assert_eq!(&named, &expected);
                let model: Vec<u32> =
                    (0..PARTS).map(|at| if expected.contains(&at) { next[at] } else { 0 }).collect();
                prop_assert_eq!(runs(&scripted), model);
            }
            (applied, failing) => prop_assert!(false, "{applied:?} {failing:?}"),
        }
    }
}

// Guarantee: reconfiguration 3.
#[test]
fn parts_get_their_old_settings_back_and_those_in_doubt_count_as_changed() {
    let (now, next) = ([0; PARTS + 1], [1, 1, 1, 1, 0, 0]);
    let scripted = parts(None, &[vec![], vec![], vec![], vec![true]]);
    let all: Vec<&dyn Part<Settings>> = scripted.iter().map(|part| part as _).collect();
    assert_eq!(plan(&all, &[4], &now, &next).unwrap(), [0, 1, 2, 3, 4]);
    let failed = apply(&all, &[0, 1, 2, 3], &now, &next).unwrap_err();
    assert_eq!((failed.part, failed.left.len(), runs(&scripted)), (3, 0, vec![0; PARTS]));
}
