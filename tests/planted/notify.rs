//! A plain notifier with connections to a server, with one fault at a time.
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use bytes::Bytes;
use steadfast::{
    notify::{Notice, NoticeSource, Notices, Notifier},
    port::{BoxFuture, Capabilities, Capability, PortError, PortErrorKind, PortFuture},
    testing::conformance::{Fixture, notify},
    time::Clock,
};
use tokio::sync::Notify;

use super::assert_each_fault_is_found;

/// The faults, and the case that finds each.
const FAULTS: &[(Fault, &str)] = {
    use Fault::*;
    &[
        (NoticesStayInTheHandle, "a_notice_reaches_all_subscribers"),
        (OnlyOneSubscriberReceives, "each_subscription_of_a_handle_receives_each_notice"),
        (HandlesHaveOneSubscription, "each_subscription_of_a_handle_receives_each_notice"),
        (EarlierNoticesAreReceived, "a_notice_from_before_the_subscription_is_not_received"),
        (SubscriptionsBeginLate, "a_notice_reaches_all_subscribers"),
        (TheOrderIsReversed, "notices_come_in_the_publishers_order"),
        (NoticesComeTwice, "notices_come_in_the_publishers_order"),
        (EqualNoticesAreMerged, "equal_notices_all_arrive"),
        (TopicsAreOne, "topics_are_apart"),
        (TopicsAreInLowerCase, "topics_are_apart"),
        (TopicsArePatterns, "topics_are_apart"),
        (NoticesAreText, "notices_are_any_bytes_up_to_the_largest"),
        (NoticesAreCutAt4KiB, "notices_are_any_bytes_up_to_the_largest"),
        (NoticesEndAtNul, "notices_are_any_bytes_up_to_the_largest"),
        (EmptyNoticesAreLost, "a_notice_reaches_all_subscribers"),
        (LargeNoticesAreRefused, "notices_are_any_bytes_up_to_the_largest"),
        (EmptyTopicsAreAccepted, "invalid_arguments_are_refused"),
        (EmptySubscriptionsAreAccepted, "invalid_arguments_are_refused"),
        (LongTopicsAreCut, "invalid_arguments_are_refused"),
        (LongSubscriptionsAreAccepted, "invalid_arguments_are_refused"),
        (TopicsAreCountedInCharacters, "invalid_arguments_are_refused"),
        (OversizedNoticesAreAccepted, "invalid_arguments_are_refused"),
        (OversizedNoticesAreCutAndSent, "invalid_arguments_are_refused"),
        (RefusalsNameNoField, "invalid_arguments_are_refused"),
        (DropsLoseANotice, "a_dropped_recv_loses_nothing"),
        (ADropEndsTheTopic, "a_dropped_subscription_ends_no_other"),
        (ADropEndsTheHandle, "a_dropped_subscription_ends_no_other"),
        (ATopicWithoutSubscribersIsClosed, "a_dropped_subscription_ends_no_other"),
        (PublishersWaitForSubscribers, "a_slow_subscriber_delays_no_publisher_and_receives_a_gap"),
        (FullBuffersDropSilently, "a_slow_subscriber_delays_no_publisher_and_receives_a_gap"),
        (FullBuffersDropNewNoticesSilently, "a_slow_subscriber_delays_no_publisher_and_receives_a_gap"),
        (GapsAreToldForEver, "a_slow_subscriber_delays_no_publisher_and_receives_a_gap"),
        (SubscriptionsEndAtAGap, "a_slow_subscriber_delays_no_publisher_and_receives_a_gap"),
        (BuffersAreOfTheHandle, "a_busy_topic_makes_no_gap_in_another"),
        (WaitingSubscribersAreNotWoken, "a_waiting_subscriber_is_told_at_once"),
        (PushIsPolling, "a_waiting_subscriber_is_told_at_once"),
        (ALostConnectionEndsTheSubscription, "a_lost_connection_is_a_gap"),
        (ALostConnectionTellsNoGap, "a_lost_connection_is_a_gap"),
        (ALostConnectionTellsGapsOnly, "a_lost_connection_is_a_gap"),
        (ALostConnectionEndsPublishing, "a_lost_connection_is_a_gap"),
        (ALostConnectionRepeatsTheLastNotice, "a_lost_connection_is_a_gap"),
        (OnlyTheFirstConnectionIsRestored, "a_lost_connection_is_a_gap"),
    ]
};

/// A fault of the notifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[rustfmt::skip]
enum Fault {
    NoticesStayInTheHandle, OnlyOneSubscriberReceives, HandlesHaveOneSubscription, EarlierNoticesAreReceived, SubscriptionsBeginLate,
    TheOrderIsReversed, NoticesComeTwice, EqualNoticesAreMerged, TopicsAreOne, TopicsAreInLowerCase, TopicsArePatterns, NoticesAreText,
    NoticesAreCutAt4KiB, NoticesEndAtNul, EmptyNoticesAreLost, LargeNoticesAreRefused, EmptyTopicsAreAccepted,
    EmptySubscriptionsAreAccepted, LongTopicsAreCut, LongSubscriptionsAreAccepted, TopicsAreCountedInCharacters,
    OversizedNoticesAreAccepted, OversizedNoticesAreCutAndSent, RefusalsNameNoField, DropsLoseANotice, ADropEndsTheTopic,
    ADropEndsTheHandle, ATopicWithoutSubscribersIsClosed, PublishersWaitForSubscribers, FullBuffersDropSilently,
    FullBuffersDropNewNoticesSilently, GapsAreToldForEver, SubscriptionsEndAtAGap, BuffersAreOfTheHandle,
    WaitingSubscribersAreNotWoken, PushIsPolling, ALostConnectionEndsTheSubscription, ALostConnectionTellsNoGap,
    ALostConnectionTellsGapsOnly, ALostConnectionEndsPublishing, ALostConnectionRepeatsTheLastNotice,
    OnlyTheFirstConnectionIsRestored,
}

/// The server: its connections, one for each subscription.
#[derive(Debug, Default)]
struct Server {
    connections: Vec<Arc<Connection>>,
    published: Vec<(String, Bytes)>,
    closed_topics: Vec<String>,
}

/// One subscription as the server and the handle know it.
#[derive(Debug)]
struct Connection {
    topic: String,
    handle: u32,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    notices: VecDeque<Bytes>,
    missed: bool,
    lost: bool,
    ended: bool,
    begins_after: u32,
    last: Option<Bytes>,
    losses: u32,
}

#[derive(Debug, Clone)]
struct Planted {
    server: Arc<Mutex<Server>>,
    clock: Clock,
    handle: u32,
    fault: Option<Fault>,
}

const CAN: Capabilities = Capabilities::of("planted", &[Capability::Push]).largest_value(1 << 17).largest_key(256);

/// Notices that a connection holds for its subscriber.
const BUFFERED: usize = 400;

impl Planted {
    fn is(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    fn server(&self) -> MutexGuard<'_, Server> {
        self.server.lock().unwrap()
    }

    fn topic(&self, topic: &str) -> String {
        match self.fault {
            Some(Fault::TopicsAreOne) => String::new(),
            Some(Fault::TopicsAreInLowerCase) => topic.to_lowercase(),
            Some(Fault::LongTopicsAreCut) => topic.chars().take(CAN.max_key()).collect(),
            _ => topic.to_owned(),
        }
    }

    fn check_topic(&self, topic: &str, is_subscription: bool) -> Result<(), PortError> {
        let length = if self.is(Fault::TopicsAreCountedInCharacters) { topic.chars().count() } else { topic.len() };
        let may_be_empty =
            self.is(Fault::EmptyTopicsAreAccepted) || is_subscription && self.is(Fault::EmptySubscriptionsAreAccepted);
        let may_be_long =
            self.is(Fault::LongTopicsAreCut) || is_subscription && self.is(Fault::LongSubscriptionsAreAccepted);
        if topic.is_empty() && !may_be_empty || length > CAN.max_key() && !may_be_long {
            let field = if self.is(Fault::RefusalsNameNoField) { "argument" } else { "topic" };
            return Err(PortError::invalid(field, "is empty or too long"));
        }
        Ok(())
    }

    fn check_notice(&self, mut notice: Bytes) -> Result<Bytes, PortError> {
        let largest = if self.is(Fault::LargeNoticesAreRefused) { 8000 } else { CAN.max_value() };
        if notice.len() > largest && !self.is(Fault::OversizedNoticesAreAccepted) {
            if self.is(Fault::OversizedNoticesAreCutAndSent) {
                self.send("t", &notice.split_to(largest));
            }
            return Err(PortError::invalid("notice", "is too large"));
        }
        Ok(match self.fault {
            Some(Fault::NoticesAreText) => String::from_utf8_lossy(&notice).into_owned().into(),
            Some(Fault::NoticesAreCutAt4KiB) => notice.slice(..notice.len().min(4096)),
            Some(Fault::NoticesEndAtNul) => notice.split(|byte| *byte == 0).next().unwrap_or_default().to_vec().into(),
            _ => notice,
        })
    }

    /// Sends to all connections of the topic, as the server does.
    fn send(&self, topic: &str, notice: &Bytes) {
        let mut server = self.server();
        server.published.push((topic.to_owned(), notice.clone()));
        if server.closed_topics.iter().any(|closed| closed == topic) {
            return;
        }
        let reaches = |connection: &&Arc<Connection>| {
            if self.is(Fault::TopicsArePatterns) {
                return connection.topic == topic || ["*", ">"].contains(&&*connection.topic);
            }
            connection.topic == topic
        };
        for connection in server.connections.iter().filter(reaches) {
            let mut state = connection.state.lock().unwrap();
            if state.lost || state.ended || self.is(Fault::NoticesStayInTheHandle) && connection.handle != self.handle {
                continue;
            }
            if state.begins_after > 0 {
                state.begins_after -= 1;
                continue;
            }
            if self.is(Fault::EmptyNoticesAreLost) && notice.is_empty()
                || self.is(Fault::EqualNoticesAreMerged) && state.notices.back() == Some(notice)
                || self.is(Fault::FullBuffersDropNewNoticesSilently)
                    && state.notices.len() >= BUFFERED
                    && notice != "last"
            {
                continue;
            }
            if state.notices.len() >= BUFFERED && !self.is(Fault::PublishersWaitForSubscribers) {
                state.notices.pop_front();
                let is_silent = [Fault::FullBuffersDropSilently, Fault::FullBuffersDropNewNoticesSilently];
                state.missed = !is_silent.into_iter().any(|fault| self.is(fault));
            }
            state.notices.push_back(notice.clone());
            if self.is(Fault::NoticesComeTwice) {
                state.notices.push_back(notice.clone());
            }
            drop(state);
            if !self.is(Fault::WaitingSubscribersAreNotWoken) && !self.is(Fault::PushIsPolling) {
                connection.changed.notify_one();
            }
            if self.is(Fault::OnlyOneSubscriberReceives) {
                break;
            }
        }
        if self.is(Fault::BuffersAreOfTheHandle) {
            let all: usize = server.connections.iter().map(|other| other.state.lock().unwrap().notices.len()).sum();
            // Notices of topics without a subscriber count as well: one buffer receives them all.
            if all > BUFFERED || server.published.len() > 2 * BUFFERED {
                for connection in &server.connections {
                    let mut state = connection.state.lock().unwrap();
                    state.notices.clear();
                    state.missed = true;
                }
            }
        }
    }

    /// Closes the connections of this handle.
    fn cut(&self) {
        for connection in self.server().connections.iter().filter(|connection| connection.handle == self.handle) {
            let mut state = connection.state.lock().unwrap();
            state.lost = true;
            state.losses += 1;
            state.notices.clear();
            drop(state);
            connection.changed.notify_one();
        }
    }
}

impl Notifier for Planted {
    fn capabilities(&self) -> Capabilities {
        CAN
    }

    fn publish<'a>(&'a self, topic: &'a str, notice: Bytes) -> PortFuture<'a, ()> {
        Box::pin(async move {
            self.check_topic(topic, false)?;
            let notice = self.check_notice(notice)?;
            let topic = self.topic(topic);
            let is_full = || {
                let server = self.server();
                let mut of_topic = server.connections.iter().filter(|connection| connection.topic == topic);
                of_topic.any(|connection| connection.state.lock().unwrap().notices.len() >= BUFFERED)
            };
            while self.is(Fault::PublishersWaitForSubscribers) && is_full() {
                self.clock.sleep(Duration::from_millis(1)).await;
            }
            let was_cut =
                self.server().connections.iter().any(|connection| connection.state.lock().unwrap().losses > 0);
            if self.is(Fault::ALostConnectionEndsPublishing) && was_cut {
                return Err(PortError::new(PortErrorKind::Unavailable, "connection lost"));
            }
            self.send(&topic, &notice);
            Ok(())
        })
    }

    fn subscribe<'a>(&'a self, topic: &'a str) -> PortFuture<'a, Notices> {
        Box::pin(async move {
            self.check_topic(topic, true)?;
            let topic = self.topic(topic);
            let mut state = State::default();
            let mut server = self.server();
            match self.fault {
                Some(Fault::EarlierNoticesAreReceived) => {
                    let earlier = server.published.iter().filter(|(of, _)| *of == topic);
                    state.notices = earlier.map(|(_, notice)| notice.clone()).collect();
                }
                Some(Fault::SubscriptionsBeginLate) => state.begins_after = 1,
                Some(Fault::HandlesHaveOneSubscription) => {
                    for other in server.connections.iter().filter(|other| other.handle == self.handle) {
                        other.state.lock().unwrap().ended = true;
                    }
                }
                _ => {}
            }
            let state = Mutex::new(state);
            let connection = Arc::new(Connection { topic, handle: self.handle, state, changed: Notify::new() });
            server.connections.push(connection.clone());
            Ok(Notices::new(Subscription { notifier: self.clone(), connection }))
        })
    }
}

struct Subscription {
    notifier: Planted,
    connection: Arc<Connection>,
}

impl Subscription {
    /// Takes the next notice that has arrived. Restores a lost connection.
    async fn next(&self) -> Option<Notice> {
        let fault = self.notifier.fault;
        let (is_lost, losses) = {
            let state = self.connection.state.lock().unwrap();
            (state.lost, state.losses)
        };
        if is_lost {
            let stays_lost = fault == Some(Fault::ALostConnectionEndsTheSubscription)
                || fault == Some(Fault::OnlyTheFirstConnectionIsRestored) && losses > 1;
            if stays_lost {
                return None;
            }
            self.notifier.clock.sleep(Duration::from_millis(50)).await;
            let mut state = self.connection.state.lock().unwrap();
            state.lost = fault == Some(Fault::ALostConnectionTellsGapsOnly);
            if let (Some(Fault::ALostConnectionRepeatsTheLastNotice), Some(last)) = (fault, state.last.clone()) {
                state.notices.push_back(last);
            }
            if fault != Some(Fault::ALostConnectionTellsNoGap) {
                return Some(Notice::Gap);
            }
        }
        let mut state = self.connection.state.lock().unwrap();
        if state.ended {
            return None;
        }
        if state.missed {
            state.missed = fault == Some(Fault::GapsAreToldForEver);
            state.ended = fault == Some(Fault::SubscriptionsEndAtAGap);
            return Some(Notice::Gap);
        }
        let next =
            if fault == Some(Fault::TheOrderIsReversed) { state.notices.pop_back() } else { state.notices.pop_front() };
        state.last = next.clone().or(state.last.take());
        next.map(Notice::Message)
    }
}

impl NoticeSource for Subscription {
    fn recv(&mut self) -> BoxFuture<'_, Notice> {
        Box::pin(async move {
            loop {
                if let Some(notice) = self.next().await {
                    if self.notifier.is(Fault::DropsLoseANotice) {
                        tokio::task::yield_now().await;
                    }
                    return notice;
                }
                if self.notifier.is(Fault::PushIsPolling) {
                    self.notifier.clock.sleep(Duration::from_millis(50)).await;
                } else {
                    self.connection.changed.notified().await;
                }
            }
        })
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let fault = self.notifier.fault;
        let server = &mut *self.notifier.server();
        server.connections.retain(|connection| {
            let ends = match fault {
                Some(Fault::ADropEndsTheTopic) => connection.topic == self.connection.topic,
                Some(Fault::ADropEndsTheHandle) => connection.handle == self.connection.handle,
                _ => Arc::ptr_eq(connection, &self.connection),
            };
            !ends
        });
        if fault == Some(Fault::ATopicWithoutSubscribersIsClosed)
            && server.connections.iter().all(|connection| connection.topic != self.connection.topic)
        {
            server.closed_topics.push(self.connection.topic.clone());
        }
    }
}

#[test]
fn each_fault_of_a_notifier_is_found_by_a_case() {
    assert_each_fault_is_found(&notify::cases(), FAULTS, async |fault| {
        let (clock, time) = Clock::manual();
        let server = Arc::<Mutex<Server>>::default();
        let handle = move |handle| Planted { server: server.clone(), clock: clock.clone(), handle, fault };
        let first = handle(1);
        let fixture = Fixture::<dyn Notifier>::new(Arc::new(first.clone())).with_second_handle(Arc::new(handle(2)));
        fixture.on_manual_time(&time).with_cut(async move || first.cut())
    });
}
