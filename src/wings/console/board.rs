//! The components of a console: read-outs that all viewers share, and actions that happen once.
use std::{
    collections::{HashMap, VecDeque},
    panic::AssertUnwindSafe,
    sync::Arc,
    time::Duration,
};

use futures_util::{FutureExt, future::join_all};
use tokio::sync::watch;

use super::{
    config::ConsoleConfig,
    event::{ConsoleEvent, ConsoleRefusal},
    panel::{Look, Order, Source},
    readout::{Action, Drawn, Note, ReadOut, Trouble},
    settings::{self, Change},
};
use crate::{
    caught::panic_text,
    config::Name,
    observe::Events,
    race::{First, race},
    spawn::Spawner,
    sync::Mutex,
    time::{Clock, Instant},
};

/// Time over which numbers are drawn, and the time between two points.
const DRAWN: (Duration, Duration) = (Duration::from_secs(900), Duration::from_secs(3));

/// Maximum number of parts of one component whose read-outs are kept.
const PARTS: usize = 64;

/// Maximum number of parts of one component that are read at a time.
const READ_AT_ONCE: usize = 16;

/// Share of the time that the read-outs of a component may take: one of a tenth.
const REST: u32 = 10;

/// Factor of the time limit of a read-out on which an action depends.
const LONGER: u32 = 5;

/// Maximum number of actions whose results are kept. A form that is sent again after that is a
/// conflict, because its own action came between.
const RESULTS: usize = 256;

/// Maximum number of parts whose last action is remembered by itself.
const ACTED: usize = 1024;

/// Longest wait of a response for the result of an action, which goes on meanwhile. So long an
/// action keeps others off its part.
const PATIENCE: Duration = Duration::from_secs(10);

const NO_SETTINGS: &str = "the component has no settings that can change";

/// Actions that wait for no other one: they must be possible while a long one runs.
const FREE: [&str; 4] = ["pause", "resume", "wake", "cancel"];

/// The components, in the order in which they were added.
pub(super) struct Board {
    pub(super) name: Option<Name>,
    pub(super) clock: Clock,
    pub(super) config: ConsoleConfig,
    pub(super) events: Events<ConsoleEvent>,
    pub(super) shown: Vec<Shown>,
    hides_bodies: bool,
    spawner: Spawner,
    results: Mutex<Results>,
}

/// One component.
pub(super) struct Shown {
    pub(super) name: String,
    pub(super) source: Box<dyn Source>,
    cache: Mutex<Cache>,
    acting: Mutex<Acts>,
}

/// The actions on one component, so that none is done for a state that another one has changed.
#[derive(Default)]
struct Acts {
    /// Number of actions so far.
    count: u64,
    /// Number of the last action, by the part of the component.
    last: HashMap<String, u64>,
    /// Number of the last action on a part that is not among `last`, or a later one.
    floor: u64,
    /// Operators that act now, by the part of the component.
    now: HashMap<String, Operator>,
    begun: u64,
}

struct Operator {
    user: String,
    since: Instant,
    number: u64,
}

impl Acts {
    fn last(&self, part: &str) -> u64 {
        self.last.get(part).copied().unwrap_or(self.floor)
    }

    /// Counts an action, unless there was one on this part since.
    fn count(&mut self, part: &str, last: u64) -> bool {
        if self.last(part) != last {
            return false;
        }
        self.count += 1;
        if self.last.len() >= ACTED {
            self.last.clear();
            self.floor = self.count;
        }
        self.last.insert(part.to_owned(), self.count);
        true
    }
}

#[derive(Default)]
struct Cache {
    /// Raised by an action: read-outs that began before it are not kept.
    version: u64,
    readings: HashMap<Option<String>, Kept>,
    in_trouble_since: Option<(Trouble, Instant)>,
    /// Time of the last point, and the time that its read-out took.
    drawn_at: Option<(Instant, Duration)>,
    drawn: Vec<Line>,
}

/// A number over time.
struct Line {
    label: &'static str,
    points: VecDeque<(Instant, f64)>,
    /// Time and value of a total at its last point.
    total: Option<(Instant, u64)>,
}

#[derive(Default)]
struct Kept {
    last: Option<Arc<Reading>>,
    running: Option<Pending<Arc<Reading>>>,
}

/// A result that a task is going to have.
type Pending<T> = watch::Receiver<Option<T>>;

/// A read-out, with what the console knows beside it.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) at: Instant,
    took: Duration,
    pub(super) out: ReadOut,
    /// Time for which the console has seen this trouble.
    pub(super) seen: Option<Duration>,
    /// Numbers over time, oldest first, by their labels.
    pub(super) drawn: Vec<(&'static str, Vec<f64>)>,
}

/// Results of actions, by the ids of the forms.
#[derive(Default)]
struct Results {
    by_form: HashMap<String, Recorded>,
    order: VecDeque<String>,
}

struct Recorded {
    user: String,
    component: usize,
    order: Order,
    result: Pending<ActionResult>,
}

/// The result of an action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ActionResult {
    Done(String),
    Failed(String),
    Conflict(String),
    /// It goes on.
    Running,
}

impl Shown {
    pub(super) fn new(name: String, source: Box<dyn Source>) -> Self {
        Self { name, source, cache: Mutex::default(), acting: Mutex::default() }
    }
}

impl Board {
    pub(super) fn new(
        name: Option<Name>,
        clock: Clock,
        config: ConsoleConfig,
        events: Events<ConsoleEvent>,
        shown: Vec<Shown>,
        hides_bodies: bool,
        spawner: Spawner,
    ) -> Self {
        Self { name, clock, config, events, shown, hides_bodies, spawner, results: Mutex::default() }
    }

    /// Returns the number of the component with this name.
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        self.shown.iter().position(|shown| shown.name == name)
    }

    /// Reads all components at a time.
    pub(super) async fn read_all(self: &Arc<Self>) -> Vec<Arc<Reading>> {
        join_all((0..self.shown.len()).map(|component| self.read(component, None))).await
    }

    /// Returns the read-out of a component, or of a part of it: the last one while it is young,
    /// else one that all who ask now share.
    ///
    /// The read-out is a task of its own: a viewer that is slow or leaves delays no other.
    pub(super) async fn read(self: &Arc<Self>, component: usize, of: Option<&str>) -> Arc<Reading> {
        if let Some(out) = self.without_parts(component, of) {
            return Arc::new(self.bare(out));
        }
        let mut running = match self.begin(component, of) {
            Ok(last) => return last,
            Err(running) => running,
        };
        let reading = running.wait_for(Option::is_some).await.ok().and_then(|reading| reading.clone());
        reading.unwrap_or_else(|| Arc::new(self.bare(away("the runtime ended"))))
    }

    /// Returns the last read-out, or the one that is under way or begins now.
    fn begin(self: &Arc<Self>, component: usize, of: Option<&str>) -> Result<Arc<Reading>, Pending<Arc<Reading>>> {
        let (shown, now, of) = (&self.shown[component], self.clock.now(), of.map(str::to_owned));
        let mut cache = shown.cache.lock();
        let version = cache.version;
        if let Some(kept) = cache.readings.get(&of) {
            let is_young = |last: &&Arc<Reading>| now.saturating_since(last.at) < self.max_age(component, last.took);
            if let Some(last) = kept.last.as_ref().filter(is_young) {
                return Ok(last.clone());
            }
            // One whose task has ended without a result is begun anew.
            if let Some(running) = kept.running.as_ref().filter(|_| kept.is_running()) {
                return Err(running.clone());
            }
        }
        if of.is_some() && !cache.make_room(&of) {
            return Ok(Arc::new(self.bare(away("too many parts are read at a time"))));
        }
        let (done, running) = watch::channel(None);
        cache.readings.entry(of.clone()).or_default().running = Some(running.clone());
        drop(cache);
        let board = self.clone();
        self.spawner.spawn(async move {
            let out = board.read_out(component, of.clone(), board.config.read_timeout).await;
            let took = board.clock.now().saturating_since(now);
            done.send_replace(Some(board.keep(component, of, version, took, out)));
        });
        Err(running)
    }

    /// Returns the time for which a read-out that took so long serves all viewers.
    fn max_age(&self, component: usize, took: Duration) -> Duration {
        let refresh = match self.shown[component].source.asks_engine() {
            true => self.config.engine_refresh,
            false => self.config.refresh,
        };
        refresh.max(took.saturating_mul(REST))
    }

    fn without_parts(&self, component: usize, of: Option<&str>) -> Option<ReadOut> {
        (of.is_some() && !self.shown[component].source.has_parts()).then(|| ReadOut::new("gone"))
    }

    /// Reads a component for an action: past the cache, and more patiently. Returns the number of
    /// the last action on the part before that, too.
    pub(super) async fn read_anew(&self, component: usize, of: Option<&str>) -> (ReadOut, u64) {
        let last = self.shown[component].acting.lock().last(of.unwrap_or_default());
        let limit = self.config.read_timeout.saturating_mul(LONGER);
        (self.read_out(component, of.map(str::to_owned), limit).await, last)
    }

    /// Keeps a read-out, unless an action came between.
    fn keep(&self, component: usize, of: Option<String>, version: u64, took: Duration, out: ReadOut) -> Arc<Reading> {
        let mut reading = Reading { took, ..self.bare(out) };
        let mut cache = self.shown[component].cache.lock();
        if of.is_none() {
            let slower = cache.drawn_at.map_or(took, |(_, before)| took.max(before));
            let gap = self.max_age(component, slower).saturating_add(self.config.refresh).saturating_mul(2);
            cache.draw(&mut reading, gap);
        }
        let reading = Arc::new(reading);
        if cache.version == version {
            cache.readings.insert(of, Kept { last: Some(reading.clone()), running: None });
        }
        reading
    }

    fn bare(&self, out: ReadOut) -> Reading {
        Reading { at: self.clock.now(), took: Duration::ZERO, out, seen: None, drawn: Vec::new() }
    }

    /// Asks a component. Whatever happens there, the result is a read-out.
    async fn read_out(&self, component: usize, of: Option<String>, limit: Duration) -> ReadOut {
        if let Some(out) = self.without_parts(component, of.as_deref()) {
            return out;
        }
        let (wall, clock) = (self.clock.wall(), self.clock.clone());
        let look = Look { of, hides_bodies: self.hides_bodies, wall, clock, limit };
        // Within the block also what the function does before it returns a future.
        let source = &self.shown[component].source;
        let read = async {
            let out = source.read(&look).await?;
            let of = look.of.as_deref();
            Ok::<_, String>(match source.settings(of) {
                Some(now) => settings::offer(out, &*now),
                None => out,
            })
        };
        let read = AssertUnwindSafe(read).catch_unwind();
        match race(read, self.clock.sleep(limit)).await {
            First::One(Ok(Ok(out))) => out,
            First::One(Ok(Err(why))) => away(why),
            First::One(Err(panic)) => away(format!("the read-out panicked: {}", panic_text(&*panic))),
            First::Other(()) => away(format!("no answer within {limit:?}: it is away, or slow")),
        }
    }

    /// Acts once for each form: a form that is sent again gets the result of the first time.
    pub(super) async fn act(self: &Arc<Self>, user: &str, form: &str, component: usize, order: Order) -> ActionResult {
        let mut result = match self.enter(user, form, component, order) {
            Ok(result) => result,
            Err(conflict) => return conflict,
        };
        match race(result.wait_for(Option::is_some), self.clock.sleep(PATIENCE)).await {
            First::One(Ok(result)) => result.clone().unwrap_or(ActionResult::Running),
            First::One(Err(_)) => dropped(),
            First::Other(()) => ActionResult::Running,
        }
    }

    /// Returns the result of a form of this user that was sent.
    pub(super) fn result(&self, user: &str, form: &str) -> Option<ActionResult> {
        let results = self.results.lock();
        let recorded = results.by_form.get(form).filter(|recorded| recorded.user == user)?;
        let result = recorded.result.borrow().clone();
        let is_running = recorded.result.has_changed().is_ok();
        Some(result.unwrap_or_else(|| if is_running { ActionResult::Running } else { dropped() }))
    }

    fn enter(
        self: &Arc<Self>,
        user: &str,
        form: &str,
        component: usize,
        order: Order,
    ) -> Result<Pending<ActionResult>, ActionResult> {
        let mut results = self.results.lock();
        if let Some(recorded) = results.by_form.get(form) {
            if recorded.user == user && recorded.component == component && recorded.order == order {
                return Ok(recorded.result.clone());
            }
            drop(results);
            let why = "this form was sent before, for something else".to_owned();
            return Err(self.conflict(user, &self.shown[component], &order, why));
        }
        let (done, result) = watch::channel(None);
        results.make_room();
        let recorded = Recorded { user: user.to_owned(), component, order: order.clone(), result: result.clone() };
        results.by_form.insert(form.to_owned(), recorded);
        results.order.push_back(form.to_owned());
        drop(results);
        let (board, user) = (self.clone(), user.to_owned());
        self.spawner.spawn(async move {
            let result = board.perform(&user, component, &order).await;
            done.send_replace(Some(result));
        });
        Ok(result)
    }

    /// Acts, if the state is still the one that the operator was told of and no other operator
    /// acts.
    async fn perform(&self, user: &str, component: usize, order: &Order) -> ActionResult {
        let shown = &self.shown[component];
        let _acting = match Acting::begin(shown, user, order, self.clock.now()) {
            Ok(acting) => acting,
            Err(other) => return self.conflict(user, shown, order, format!("{other} acts on this now")),
        };
        let action = match self.offered(user, component, order).await {
            Ok(action) => action,
            Err(conflict) => return conflict,
        };
        if action.note == Note::Required && order.note.trim().is_empty() {
            self.refused(user, &shown.name, &order.action, ConsoleRefusal::Malformed);
            return ActionResult::Failed("a note is required".to_owned());
        }
        if !shown.acting.lock().count(order.part(), order.acts) {
            let why = "there was another action since the page was made".to_owned();
            return self.conflict(user, shown, order, why);
        }
        // Of settings an event has what changes: a text may have a secret.
        let note = match action.note {
            Note::Settings => self.review(component, order).map_or_else(|why| why, |changes| settings::words(&changes)),
            Note::None | Note::Required => order.note.clone(),
        };
        let began = || ConsoleEvent::Began {
            user: user.to_owned(),
            component: shown.name.clone(),
            action: order.action.clone(),
            of: order.part().to_owned(),
            note: note.clone(),
        };
        self.events.send(self.name.as_ref(), self.clock.now(), began);
        let act = async {
            match action.note {
                Note::Settings => self.replace(component, order),
                Note::None | Note::Required => shown.source.act(order).await,
            }
        };
        let act = AssertUnwindSafe(act).catch_unwind().await;
        let result = act.unwrap_or_else(|panic| Err(format!("the action panicked: {}", panic_text(&*panic))));
        shown.cache.lock().forget();
        self.events.send(self.name.as_ref(), self.clock.now(), || ConsoleEvent::Acted {
            user: user.to_owned(),
            component: shown.name.clone(),
            action: order.action.clone(),
            of: order.part().to_owned(),
            note: note.clone(),
            result: result.clone(),
        });
        result.map_or_else(ActionResult::Failed, ActionResult::Done)
    }

    /// Returns an action that is offered now, if it does what the operator was told.
    async fn offered(&self, user: &str, component: usize, order: &Order) -> Result<Action, ActionResult> {
        let shown = &self.shown[component];
        let (now, _) = self.read_anew(component, order.of.as_deref()).await;
        let offered = now.actions.into_iter().find(|action| action.name == order.action);
        offered.filter(|action| shown.source.holds(order, action)).ok_or_else(|| {
            let why = format!("the state has changed since the page was made: now {}", now.state);
            self.conflict(user, shown, order, why)
        })
    }

    /// Compares the settings of an order with those in effect, which stay. The outer error says
    /// that they are others than the operator was shown, the inner one that the order's are not
    /// valid.
    pub(super) async fn compare(
        &self,
        user: &str,
        component: usize,
        order: &Order,
    ) -> Result<(Action, Result<Vec<Change>, String>), ActionResult> {
        let action = self.offered(user, component, order).await?;
        if action.note != Note::Settings {
            return Err(ActionResult::Conflict(NO_SETTINGS.to_owned()));
        }
        Ok((action, self.review(component, order)))
    }

    fn review(&self, component: usize, order: &Order) -> Result<Vec<Change>, String> {
        let settings = self.shown[component].source.settings(order.of.as_deref()).ok_or(NO_SETTINGS)?;
        settings::review(&*settings, &order.note)
    }

    fn replace(&self, component: usize, order: &Order) -> Result<String, String> {
        let settings = self.shown[component].source.settings(order.of.as_deref()).ok_or(NO_SETTINGS)?;
        settings::apply(&*settings, &order.note)
    }

    fn conflict(&self, user: &str, shown: &Shown, order: &Order, why: String) -> ActionResult {
        self.refused(user, &shown.name, &order.action, ConsoleRefusal::Conflict);
        // The operator is shown the state that the conflict is about.
        shown.cache.lock().forget();
        ActionResult::Conflict(why)
    }

    pub(super) fn refused(&self, user: &str, component: &str, action: &str, reason: ConsoleRefusal) {
        self.events.send(self.name.as_ref(), self.clock.now(), || ConsoleEvent::Refused {
            user: user.to_owned(),
            component: component.to_owned(),
            action: action.to_owned(),
            reason,
        });
    }
}

impl Kept {
    fn is_running(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.has_changed().is_ok())
    }
}

impl Cache {
    /// Forgets all read-outs, and does not keep those that run.
    fn forget(&mut self) {
        self.version += 1;
        self.readings.clear();
    }

    /// Makes room for the read-out of a part. Returns `false` if too many are read now.
    fn make_room(&mut self, of: &Option<String>) -> bool {
        let parts = || self.readings.iter().filter(|(of, _)| of.is_some());
        if parts().filter(|(_, kept)| kept.is_running()).count() >= READ_AT_ONCE {
            return false;
        }
        if self.readings.contains_key(of) || parts().count() < PARTS {
            return true;
        }
        let at_rest = parts().filter(|(_, kept)| !kept.is_running());
        let oldest = at_rest.min_by_key(|(_, kept)| kept.last.as_ref().map(|last| last.at)).map(|(of, _)| of.clone());
        oldest.is_some_and(|oldest| self.readings.remove(&oldest).is_some())
    }

    /// Adds the numbers of a read-out to those that are drawn, and the time of its trouble.
    ///
    /// After a time in which nobody looked they begin anew: what was in between is not known.
    fn draw(&mut self, reading: &mut Reading, gap: Duration) {
        let now = reading.at;
        if self.drawn_at.replace((now, reading.took)).is_some_and(|(last, _)| now.saturating_since(last) > gap) {
            self.in_trouble_since = None;
            self.drawn.clear();
        }
        self.in_trouble_since = match (reading.out.trouble, self.in_trouble_since) {
            (Some(trouble), Some((before, since))) if trouble == before => Some((trouble, since)),
            (Some(trouble), _) => Some((trouble, now)),
            (None, _) => None,
        };
        reading.seen = self.in_trouble_since.map(|(_, since)| now.saturating_since(since));
        for (label, drawn) in &reading.out.drawn {
            let at = self.drawn.iter().position(|line| line.label == *label).unwrap_or_else(|| {
                self.drawn.push(Line { label, points: VecDeque::new(), total: None });
                self.drawn.len() - 1
            });
            self.drawn[at].add(now, *drawn);
        }
        let own = reading.out.lines.clone();
        let values = |line: &Line| (line.label, line.points.iter().map(|(_, value)| *value).collect());
        reading.drawn = own.into_iter().chain(self.drawn.iter().map(values)).collect();
    }
}

impl Line {
    fn add(&mut self, now: Instant, drawn: Drawn) {
        let last = self.total.map(|(at, _)| at).or(self.points.back().map(|(at, _)| *at));
        let since = last.map(|last| now.saturating_since(last));
        if since.is_some_and(|since| since < DRAWN.1) {
            return;
        }
        match (drawn, self.total) {
            (Drawn::Level(level), _) => self.points.push_back((now, level)),
            (Drawn::Total(total), before) => {
                self.total = Some((now, total));
                // A page that nobody looked at for long begins anew.
                if let (Some((_, before)), Some(since)) = (before, since.filter(|since| *since < DRAWN.0)) {
                    let growth = total.saturating_sub(before) as f64 * 60.0 / since.as_secs_f64();
                    self.points.push_back((now, growth.round()));
                }
            }
        }
        while self.points.front().is_some_and(|(first, _)| now.saturating_since(*first) > DRAWN.0) {
            self.points.pop_front();
        }
    }
}

impl Results {
    /// Forgets the oldest results that are there.
    fn make_room(&mut self) {
        for _ in 0..self.order.len() {
            if self.by_form.len() < RESULTS {
                return;
            }
            let Some(form) = self.order.pop_front() else { return };
            match self.by_form.get(&form) {
                Some(recorded) if recorded.result.borrow().is_none() && recorded.result.has_changed().is_ok() => {
                    self.order.push_back(form);
                }
                _ => drop(self.by_form.remove(&form)),
            }
        }
    }
}

/// An operator that acts on a part of a component. Until it is dropped, or some time has passed, no
/// other one does.
struct Acting<'a> {
    shown: &'a Shown,
    part: &'a str,
    number: u64,
}

impl<'a> Acting<'a> {
    /// Returns `None` for an action that waits for no other one, and the name of another operator
    /// that acts now as the error.
    fn begin(shown: &'a Shown, user: &str, order: &'a Order, since: Instant) -> Result<Option<Self>, String> {
        if FREE.contains(&order.action.as_str()) {
            return Ok(None);
        }
        let (mut acts, part) = (shown.acting.lock(), order.part());
        if let Some(other) = acts.now.get(part).filter(|other| since.saturating_since(other.since) < PATIENCE) {
            return Err(other.user.clone());
        }
        acts.begun += 1;
        let number = acts.begun;
        acts.now.insert(part.to_owned(), Operator { user: user.to_owned(), since, number });
        Ok(Some(Self { shown, part, number }))
    }
}

impl Drop for Acting<'_> {
    fn drop(&mut self) {
        let mut acts = self.shown.acting.lock();
        if acts.now.get(self.part).is_some_and(|operator| operator.number == self.number) {
            acts.now.remove(self.part);
        }
    }
}

fn dropped() -> ActionResult {
    ActionResult::Failed("it was dropped; look at the state".to_owned())
}

fn away(why: impl Into<String>) -> ReadOut {
    ReadOut::new("away").trouble(Trouble::Lost, why)
}
