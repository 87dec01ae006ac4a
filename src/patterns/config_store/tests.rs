//! Trials of revisions, against a naive model.
use bytes::Bytes;
use proptest::prelude::*;

use super::{
    Documents,
    state::{Id, Known, Take, Trials},
};

const MAX_LIVES: u32 = 2;

/// A step of a process's life.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// Another revision is published: one of a few texts.
    Publish(u64),
    /// The process looks at the head, as it does when it starts.
    Look,
    /// It looks, and the loader refuses the revision.
    LookAndRefuse,
    /// It starts without the store: the good revision runs, and the head is not seen.
    StartFromLocal,
    Pass,
    /// Its trial ends well while other processes have another revision.
    PassStaged,
    Stop,
    Kill,
}

fn known(number: u64, digest: u64) -> Known {
    Known { id: Id { number, owner: 0 }, digest }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0u64..4).prop_map(Step::Publish),
        5 => Just(Step::Look),
        1 => Just(Step::LookAndRefuse),
        2 => Just(Step::StartFromLocal),
        2 => Just(Step::Pass),
        2 => Just(Step::PassStaged),
        1 => Just(Step::Stop),
        4 => Just(Step::Kill),
    ];
    prop::collection::vec(step, 1..80)
}

/// The naive model: for each number, how often a process died after it had parsed it on trial.
#[derive(Default)]
struct Model {
    deaths: std::collections::BTreeMap<u64, u32>,
    good: Option<u64>,
    /// The text that has passed in this process alone.
    staged: Option<u64>,
}

proptest! {
    // Guarantee: config_store 5.
    #[test]
    fn no_number_is_parsed_again_after_it_has_ended_two_lives_and_good_ones_always_are(steps in steps()) {
        let mut trials = Trials::default();
        let mut model = Model::default();
        let mut head = known(1, 0);
        // What runs in this life, and the number that was parsed on trial.
        let (mut running, mut on_trial): (Option<Known>, Option<u64>) = (None, None);
        for step in steps {
            match step {
                Step::Publish(digest) => head = known(head.id.number + 1, digest),
                Step::StartFromLocal => running = running.or(trials.good),
                Step::LookAndRefuse if running.is_none_or(|running| running.digest != head.digest) => {
                    let before = trials.clone();
                    if trials.take(head, MAX_LIVES) != Take::Not {
                        trials = before;
                        trials.refuse(head.id);
                    }
                    running = running.or(trials.good);
                }
                Step::LookAndRefuse => {}
                Step::Look if running.is_some_and(|running| running.digest == head.digest) => {
                    trials.rename(head);
                    running = Some(head);
                    model.staged.take_if(|_| on_trial.is_none() && model.good == Some(head.digest));
                    if on_trial.is_some() {
                        on_trial = Some(head.id.number);
                    }
                }
                Step::Look => match trials.take(head, MAX_LIVES) {
                    Take::Proven => {
                        prop_assert!([model.good, model.staged].contains(&Some(head.digest)));
                        model.staged.take_if(|_| model.good == Some(head.digest));
                        (running, on_trial) = (Some(head), None);
                    }
                    Take::OnTrial => {
                        let deaths = model.deaths.get(&head.id.number).copied().unwrap_or_default();
                        let is_free = deaths < MAX_LIVES || trials.good.is_none();
                        prop_assert!(is_free, "{head:?} has ended {deaths} lives");
                        prop_assert!(![model.good, model.staged].contains(&Some(head.digest)));
                        model.staged = None;
                        (running, on_trial) = (Some(head), Some(head.id.number));
                    }
                    Take::Not => {
                        prop_assert_eq!(trials.quarantined, Some(head.id));
                        prop_assert!(trials.good.is_some_and(|good| good.digest != head.digest));
                        running = running.or(trials.good);
                    }
                },
                Step::Pass => {
                    if let Some(known) = running {
                        // What is not on trial passes none.
                        prop_assert_eq!(trials.pass(known), on_trial.is_some());
                        trials.settle(known);
                        prop_assert_eq!(trials.good, Some(known));
                        // One good revision is kept: the latest.
                        if on_trial.take().is_some() || model.staged == Some(known.digest) {
                            (model.good, model.staged) = (Some(known.digest), None);
                        }
                    }
                }
                Step::PassStaged => {
                    let good = trials.good;
                    if let Some(known) = running && trials.pass(known) {
                        // The good one stays until this one is in effect for all.
                        model.staged = Some(known.digest);
                        on_trial = None;
                    }
                    prop_assert_eq!(trials.good, good);
                }
                Step::Stop => {
                    trials.stop();
                    (running, on_trial) = (None, None);
                }
                Step::Kill => {
                    if let Some(number) = on_trial {
                        *model.deaths.entry(number).or_default() += 1;
                    }
                    (running, on_trial) = (None, None);
                    // This is not stored.
                    if let Some(trial) = &mut trials.trial {
                        trial.is_counted = false;
                    }
                }
            }
        }
    }
}

#[test]
fn the_layers_of_a_program_keep_no_memory_of_other_documents() {
    let stored = Bytes::from(b"of a revision".to_vec());
    let all = [("org".to_owned(), stored.slice(..2)), ("orders".to_owned(), stored.clone())];
    let layers = Documents::new(all.into()).only(&["org".to_owned()]);
    assert!(!stored.as_ptr_range().contains(&layers.bytes("org").unwrap().as_ptr()));
}

// Guarantee: reconfiguration 6.
#[test]
fn a_change_that_is_aborted_after_its_trial_leaves_the_good_revision_before_it() {
    let mut trials = Trials { good: Some(known(3, 8)), ..Trials::default() };
    let staged = known(4, 9);
    assert_eq!(trials.take(staged, MAX_LIVES), Take::OnTrial);
    assert!(trials.pass(staged));
    // After a restart during the stage it is taken without a trial.
    assert_eq!(trials.take(staged, MAX_LIVES), Take::Proven);
    assert_eq!(trials.good, Some(known(3, 8)));
    // The number before needs no trial again, so deaths by chance cannot end it.
    assert_eq!(trials.take(known(3, 8), MAX_LIVES), Take::Proven);
    assert_eq!((trials.proven, trials.trial), (None, None));
    assert_eq!(trials.take(staged, MAX_LIVES), Take::OnTrial);
    assert!(trials.pass(staged) && trials.settle(staged) && !trials.settle(staged));
    assert_eq!(trials.good, Some(staged));
}

#[test]
fn an_orderly_stop_is_no_death() {
    let mut trials = Trials::default();
    let next = known(3, 9);
    for _ in 0..10 {
        assert_eq!(trials.take(next, MAX_LIVES), Take::OnTrial);
        assert!(trials.stop());
        assert!(!trials.stop());
    }
}

#[test]
fn a_quarantined_text_is_tried_again_under_a_higher_number_alone() {
    let mut trials = Trials { good: Some(known(2, 8)), ..Trials::default() };
    let die = |trials: &mut Trials, next| {
        let take = trials.take(next, MAX_LIVES);
        if let Some(trial) = &mut trials.trial {
            trial.is_counted = false;
        }
        take
    };
    let bad = known(3, 9);
    let takes: Vec<_> = (0..5).map(|_| die(&mut trials, bad)).collect();
    assert_eq!(takes, [Take::OnTrial, Take::OnTrial, Take::Not, Take::Not, Take::Not]);
    // The same number by another publication, after a backup was restored, is another revision.
    let again = Known { id: Id { owner: 7, ..bad.id }, ..bad };
    assert_eq!(die(&mut trials.clone(), again), Take::OnTrial);
    assert_eq!(die(&mut trials, known(4, 9)), Take::OnTrial);
}
