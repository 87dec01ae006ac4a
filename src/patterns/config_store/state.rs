//! Trial and quarantine: a machine that knows neither stores nor documents.
//!
//! Its state outlives the process. A number is recorded before anything of its documents is parsed,
//! so that a document that ends the process is known at the next start.

/// Digest of the documents that a program reads.
pub(super) type Digest = u64;

/// The identity of a revision. After a backup was restored a number may be given again, by another
/// publication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Id {
    pub(super) number: u64,
    /// Random number of its publication.
    pub(super) owner: u64,
}

/// A revision, and the digest of the program's layers in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) id: Id,
    pub(super) digest: Digest,
}

/// A revision on trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Trial {
    pub(super) of: Known,
    /// Number of lives that took it, and have not ended in order.
    pub(super) lives: u32,
    /// `true` if this life is among them. It is not stored.
    pub(super) is_counted: bool,
}

/// The state of a process across its restarts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Trials {
    /// The last revision that passed its trial, and was in effect for all processes.
    pub(super) good: Option<Known>,
    /// A revision that passed its trial while it was in effect for some processes only. A change
    /// that is aborted must leave the good one before it.
    pub(super) proven: Option<Known>,
    pub(super) trial: Option<Trial>,
    /// The revision that ended too many lives.
    pub(super) quarantined: Option<Id>,
    /// The revision that the program vetoed last.
    pub(super) vetoed: Option<Id>,
}

/// Treatment of a revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Take {
    /// Its layers have passed a trial: it is parsed.
    Proven,
    /// It is parsed after the state was recorded.
    OnTrial,
    /// It is not parsed in this process.
    Not,
}

impl Trials {
    /// Decides on a revision that has other layers than those that run in this process, if any do.
    pub(super) fn take(&mut self, next: Known, max_lives: u32) -> Take {
        if self.quarantined == Some(next.id) {
            return Take::Not;
        }
        self.quarantined.take_if(|quarantined| quarantined.number <= next.id.number);
        if self.good.is_some_and(|good| good.digest == next.digest) {
            self.good = Some(next);
            (self.proven, self.trial) = (None, None);
            return Take::Proven;
        }
        if self.proven.is_some_and(|proven| proven.digest == next.digest) {
            self.proven = Some(next);
            self.trial = None;
            return Take::Proven;
        }
        let lives = match self.trial.filter(|trial| trial.of.digest == next.digest) {
            // A process that was interrupted before it took the number takes it up again in the same life.
            Some(trial) if trial.is_counted => trial.lives,
            // Without a good one there is nothing better to start with.
            Some(trial) if trial.lives >= max_lives && self.good.is_some() => {
                self.trial = None;
                self.quarantined = Some(next.id);
                return Take::Not;
            }
            Some(trial) => trial.lives.saturating_add(1),
            None => 1,
        };
        self.trial = Some(Trial { of: next, lives, is_counted: true });
        self.proven = None;
        Take::OnTrial
    }

    /// Renames the revision that runs: `next` has the same layers. A trial of other layers is over,
    /// as if the good revision had been taken anew.
    pub(super) fn rename(&mut self, next: Known) {
        if let Some(trial) = self.trial.as_mut().filter(|trial| trial.of.digest == next.digest) {
            trial.of = next;
        } else if self.good.is_some_and(|good| good.digest == next.digest) {
            self.good = Some(next);
            (self.proven, self.trial) = (None, None);
        } else if let Some(proven) = self.proven.as_mut().filter(|proven| proven.digest == next.digest) {
            *proven = next;
        }
    }

    /// Ends the trial of this revision well. Returns `false` if there is none.
    pub(super) fn pass(&mut self, of: Known) -> bool {
        let Some(trial) = self.trial.take_if(|trial| trial.of == of) else { return false };
        self.proven = Some(trial.of);
        true
    }

    /// Notes that a revision is in effect for all processes. Returns `true` if it is good by that.
    pub(super) fn settle(&mut self, of: Known) -> bool {
        let Some(proven) = self.proven.take_if(|proven| *proven == of) else { return false };
        self.good = Some(proven);
        true
    }

    /// Ends the life in order: it was no death. Returns `false` if that changes nothing.
    pub(super) fn stop(&mut self) -> bool {
        let Some(trial) = self.trial.as_mut().filter(|trial| trial.is_counted) else { return false };
        trial.lives -= 1;
        trial.is_counted = false;
        true
    }

    /// Ends the attempt at a revision that is not taken: it has ended no life. Its earlier deaths
    /// stand.
    pub(super) fn refuse(&mut self, id: Id) {
        if self.trial.is_some_and(|trial| trial.of.id == id) {
            self.stop();
        }
    }

    /// Returns `true` if this revision is on trial.
    pub(super) fn is_on_trial(&self, of: Known) -> bool {
        self.trial.is_some_and(|trial| trial.of == of)
    }

    /// Returns `true` if a start takes the last good revision instead of this one, which the
    /// program vetoed.
    pub(super) fn is_vetoed(&self, id: Id) -> bool {
        self.vetoed == Some(id) && self.good.is_some_and(|good| good.id != id)
    }
}
