//! The guard of a fleet: how many members may leave because of a dependency.
//!
//! A fleet of `n` members with the share `s` has `floor(s * n)` slots. A slot is a row that exists
//! while one member holds it: the member inserts it if it is absent, renews it, and deletes it. Of
//! several members that insert one row, one succeeds. A member counts itself as ejected only as
//! long as its row certainly exists.
use std::{collections::HashSet, sync::Arc, time::Duration};

use super::{HealthConfig, HealthEvent as Event, state::slots};
use crate::{
    entropy::Entropy,
    port::AskError,
    presence::{Fleet, Presence, RENEW_EVERY, TTL, VALID_FOR},
    store::{DeleteOptions, Precondition, PutOptions, Row, Store, StoreError, Version},
    sync::Mutex,
    time::{Clock, Instant},
};

/// Longest pause between two turns of a member.
pub(super) const LONGEST_TURN: Duration = Duration::from_secs(5);

/// Time limit of one request to the store of the fleet.
const STORE_TIMEOUT: Duration = Duration::from_secs(3);

/// Maximum number of slots that a member tries to take in one turn.
const ATTEMPTS: usize = 3;

/// Prefix of the row of a slot.
const SLOT: &str = "slot ";

/// Returns `true` if a fleet of so many slots has this one. By its number, and not by how many are
/// taken: members that look at the same moment then hold different ones, never more than there are.
fn counts(slot: &str, slots: usize) -> bool {
    slot.strip_prefix(SLOT).and_then(|number| number.parse().ok()).is_some_and(|number: usize| number < slots)
}

/// The events of a turn, in order.
pub(super) type Told<'a> = &'a (dyn Fn(Event) + Sync);

pub(super) struct FleetGuard {
    presence: Presence,
    clock: Clock,
    entropy: Entropy,
    /// Value of this member's slot: its name and a random number.
    holder: String,
    seat: Mutex<Seat>,
}

#[derive(Debug, Clone, Default)]
struct Seat {
    slot: Option<Slot>,
    /// Time from which the member's own row is renewed.
    renew_from: Instant,
    /// `true` once a row of this member may exist.
    is_member: bool,
    /// Set once an event has told that the member stays: the time of the next look for a slot.
    stays_until: Option<Instant>,
    is_store_down: bool,
    /// The verdict of a member that has left the fleet.
    left: Option<bool>,
}

#[derive(Debug, Clone)]
struct Slot {
    row: String,
    version: Version,
    /// Time until which the row certainly exists.
    valid_until: Instant,
    renew_from: Instant,
}

/// The part of a member in its fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// It serves.
    Serves,
    /// It has lost a required dependency.
    WantsToLeave,
    /// It serves nothing anyway: it stops, has failed by itself, or was never ready.
    Away,
}

impl FleetGuard {
    pub(super) fn new(presence: Presence, clock: Clock, entropy: Entropy, member: &str) -> Self {
        let holder = format!("{member}#{:016x}", entropy.next_u64());
        Self { presence, clock, entropy, holder, seat: Mutex::default() }
    }

    /// Creates the presence of a member in the fleet of this name.
    pub(super) fn presence(store: Arc<dyn Store>, clock: &Clock, (name, member): (&str, &str)) -> Presence {
        Presence::new(store, clock.clone(), STORE_TIMEOUT, (format!("health {name}"), member))
    }

    /// Returns `true` if this member holds a slot at this time.
    pub(super) fn is_ejected(&self, now: Instant) -> bool {
        let seat = self.seat.lock();
        seat.left.unwrap_or(seat.slot.as_ref().is_some_and(|slot| now < slot.valid_until))
    }

    /// Renews the member's row, and takes, renews or gives up a slot.
    pub(super) async fn turn(&self, config: &HealthConfig, part: Part, told: Told<'_>) {
        self.seat.lock().left = None;
        if part == Part::Away && !self.seat.lock().is_member {
            return;
        }
        let turned = match part {
            Part::Away => self.go_away(told).await,
            _ => self.try_turn(config, part == Part::WantsToLeave, told).await,
        };
        let mut seat = self.seat.lock();
        let was_down = std::mem::replace(&mut seat.is_store_down, turned.is_err());
        drop(seat);
        match turned {
            Err(error) if !was_down => told(Event::StoreFailed { kind: error.kind() }),
            Ok(()) if was_down => told(Event::StoreBack),
            _ => {}
        }
    }

    async fn try_turn(
        &self,
        config: &HealthConfig,
        wants_to_leave: bool,
        told: Told<'_>,
    ) -> Result<(), AskError<StoreError>> {
        let now = self.clock.now();
        let mut renewed = Ok(());
        let is_lost = self.seat.lock().slot.take_if(|slot| now >= slot.valid_until).is_some();
        if is_lost {
            told(Event::Returned);
        }
        if now >= self.seat.lock().renew_from {
            self.seat.lock().is_member = true;
            renewed = self.presence.renew().await.map(|()| self.seat.lock().renew_from = now + RENEW_EVERY);
        }
        let slot = self.seat.lock().slot.clone();
        match (slot, wants_to_leave) {
            (None, false) => self.seat.lock().stays_until = None,
            (Some(slot), false) => self.give_up(slot, told).await?,
            (Some(slot), true) if now < slot.renew_from => {}
            (Some(slot), true) => self.keep(config, slot, told).await?,
            // Without a row of its own the members are unknown.
            (None, true) if renewed.is_err() => {}
            (None, true) if self.seat.lock().stays_until.is_some_and(|until| now < until) => {}
            (None, true) => self.take(config, told).await?,
        }
        renewed
    }

    /// Frees the slot and deletes the member's row. The verdict stays as it is.
    pub(super) async fn leave(&self, now: Instant) {
        let slot = self.seat.lock().slot.clone();
        let is_ejected = self.is_ejected(now);
        self.seat.lock().left = Some(is_ejected);
        if let Some(slot) = slot {
            // Rows that could not be deleted expire.
            let _ = self.free(slot).await;
        }
        let _ = self.presence.leave().await;
        *self.seat.lock() = Seat { left: Some(is_ejected), ..Seat::default() };
    }

    /// Ends the membership of a member that serves nothing, so that the others are counted alone.
    /// It may come back.
    async fn go_away(&self, told: Told<'_>) -> Result<(), AskError<StoreError>> {
        let before = {
            let mut seat = self.seat.lock();
            let is_store_down = seat.is_store_down;
            std::mem::replace(&mut *seat, Seat { is_store_down, ..Seat::default() })
        };
        if let Some(slot) = before.slot {
            told(Event::Returned);
            self.free(slot).await?;
        }
        self.presence.leave().await
    }

    async fn give_up(&self, slot: Slot, told: Told<'_>) -> Result<(), AskError<StoreError>> {
        // From now on the member is ready, whether the row is deleted or expires.
        self.hold(None);
        told(Event::Returned);
        self.free(slot).await
    }

    async fn free(&self, slot: Slot) -> Result<(), AskError<StoreError>> {
        let options = DeleteOptions { when: Precondition::Version(slot.version), ..DeleteOptions::new() };
        let deleted = self.presence.store().delete(self.presence.key(&slot.row), options);
        match self.presence.ask(deleted).await {
            Err(AskError::Failed(StoreError::Conflict { .. })) | Ok(_) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Renews the slot, or gives it up if the fleet has become too small for its number. Another
    /// one may be free then.
    /// The row may have a later version than is known, by a write whose reply was lost.
    async fn keep(&self, config: &HealthConfig, slot: Slot, told: Told<'_>) -> Result<(), AskError<StoreError>> {
        let Some(fleet) = self.presence.list().await? else { return self.give_up(slot, told).await };
        let is_own = |row: &&Row| row.row == slot.row && row.value == self.holder.as_bytes();
        let Some(own) = fleet.rows.iter().find(is_own) else {
            // It has expired, or another member has it.
            self.hold(None);
            told(Event::Returned);
            return self.take(config, told).await;
        };
        if !counts(&slot.row, slots(config.max_ejected, fleet.members)) {
            return self.give_up(Slot { version: own.version, ..slot }, told).await;
        }
        match self.write(&slot.row, Precondition::Version(own.version)).await {
            // A late write of its own. The slot is valid until its time, and the next turn looks again.
            Err(AskError::Failed(StoreError::Conflict { .. })) | Ok(()) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Takes a free slot, chosen at random, so that few members try the same one.
    async fn take(&self, config: &HealthConfig, told: Told<'_>) -> Result<(), AskError<StoreError>> {
        for _ in 0..ATTEMPTS {
            let Some(fleet) = self.presence.list().await? else {
                self.stay(|| told(Event::TooManyMembers));
                return Ok(());
            };
            let members = fleet.members;
            let (row, when) = match self.choose(config, fleet) {
                Some(choice) => choice,
                None => {
                    self.stay(|| told(Event::Stayed { members }));
                    return Ok(());
                }
            };
            match self.write(&row, when).await {
                Ok(()) => {
                    told(Event::Ejected { members });
                    return Ok(());
                }
                Err(AskError::Failed(StoreError::Conflict { .. })) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns the row of a free slot, or of one that this member holds by a write whose reply was
    /// lost.
    fn choose(&self, config: &HealthConfig, fleet: Fleet) -> Option<(String, Precondition)> {
        let slots = slots(config.max_ejected, fleet.members);
        let taken: Vec<Row> = fleet.rows.into_iter().filter(|row| row.row.starts_with(SLOT)).collect();
        if let Some(own) = taken.iter().find(|row| row.value == self.holder.as_bytes()) {
            return counts(&own.row, slots).then(|| (own.row.clone(), Precondition::Version(own.version)));
        }
        if taken.len() >= slots {
            return None;
        }
        let taken: HashSet<&str> = taken.iter().map(|row| &*row.row).collect();
        let free = (0..slots).map(|slot| format!("{SLOT}{slot:04}")).filter(|row| !taken.contains(&**row));
        let mut free: Vec<String> = free.collect();
        let chosen = self.entropy.up_to((free.len() as u64).checked_sub(1)?);
        Some((free.swap_remove(usize::try_from(chosen).ok()?), Precondition::Absent))
    }

    async fn write(&self, row: &str, when: Precondition) -> Result<(), AskError<StoreError>> {
        let began = self.clock.now();
        let options = PutOptions { when, ..PutOptions::new().ttl(TTL) };
        let value = self.holder.clone().into();
        let version = self.presence.ask(self.presence.store().put(self.presence.key(row), value, options)).await?;
        let (valid_until, renew_from) = (began + VALID_FOR, began + RENEW_EVERY);
        self.hold(Some(Slot { row: row.to_owned(), version, valid_until, renew_from }));
        Ok(())
    }

    /// Looks for a slot again later, and tells that once.
    fn stay(&self, tell: impl FnOnce()) {
        let again = self.clock.now() + RENEW_EVERY;
        let before = self.seat.lock().stays_until.replace(again);
        if before.is_none() {
            tell();
        }
    }

    fn hold(&self, slot: Option<Slot>) {
        let mut seat = self.seat.lock();
        (seat.slot, seat.stays_until) = (slot, None);
    }
}
