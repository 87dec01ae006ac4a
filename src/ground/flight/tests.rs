//! Flights: the number of polls, and the choice of the next driver.
#![allow(clippy::unwrap_used, reason = "tests")]
use std::{
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll, Wake, Waker},
};

use super::{FlightResult, Flights, JoinOrLead, Seat};
use crate::entropy::Entropy;

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

fn poll(seat: &mut Pin<Box<Seat<u8, u32>>>, waker: &Arc<Count>) -> Poll<Option<u32>> {
    let polled = seat.as_mut().poll(&mut Context::from_waker(&Waker::from(waker.clone())));
    polled.map(|result| result.map(FlightResult::into_inner))
}

/// Work that becomes ready on demand, and records its polls and its waker.
#[derive(Clone, Default)]
struct Script {
    ready: Arc<AtomicBool>,
    polls: Arc<AtomicUsize>,
    wakes: Arc<Mutex<Option<Waker>>>,
    dropped: Arc<AtomicBool>,
}

struct Sets(Arc<AtomicBool>);

impl Drop for Sets {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

impl Script {
    fn work(&self) -> Pin<Box<dyn Future<Output = u32> + Send>> {
        let (script, sets) = (self.clone(), Sets(self.dropped.clone()));
        Box::pin(async move {
            let _sets = sets;
            poll_fn(|cx| {
                script.polls.fetch_add(1, SeqCst);
                *script.wakes.lock().unwrap() = Some(cx.waker().clone());
                if script.ready.load(SeqCst) { Poll::Ready(7) } else { Poll::Pending }
            })
            .await
        })
    }

    fn finish(&self) {
        self.ready.store(true, SeqCst);
        self.wakes.lock().unwrap().take().unwrap().wake();
    }
}

fn lead(flights: &Flights<u8, u32>, script: &Script) -> Seat<u8, u32> {
    match flights.join_or_lead(&1) {
        JoinOrLead::Leads(lead) => lead.start(script.work()),
        JoinOrLead::Joined(_) => panic!("a flight is under way"),
    }
}

fn join(flights: &Flights<u8, u32>) -> Seat<u8, u32> {
    match flights.join_or_lead(&1) {
        JoinOrLead::Joined(seat) => seat,
        JoinOrLead::Leads(_) => panic!("no flight is under way"),
    }
}

#[test]
fn waiting_seats_are_polled_twice_and_the_work_by_its_driver_alone() {
    let (flights, script) = (Flights::new(None), Script::default());
    let waker = Arc::new(Count::default());
    let mut first = Box::pin(lead(&flights, &script));
    assert!(poll(&mut first, &waker).is_pending());
    let (others, others_waker): (Vec<_>, _) = ((0..100).map(|_| join(&flights)).collect(), Arc::new(Count::default()));
    let mut others: Vec<_> = others.into_iter().map(Box::pin).collect();
    for other in &mut others {
        assert!(poll(other, &others_waker).is_pending());
    }
    // The work wakes only its driver, any number of times.
    for _ in 0..10 {
        script.wakes.lock().unwrap().clone().unwrap().wake();
        assert!(poll(&mut first, &waker).is_pending());
    }
    assert_eq!((waker.0.load(SeqCst), others_waker.0.load(SeqCst), script.polls.load(SeqCst)), (10, 0, 11));
    script.finish();
    assert_eq!(poll(&mut first, &waker), Poll::Ready(Some(7)));
    assert_eq!(others_waker.0.load(SeqCst), 100);
    for mut other in others {
        assert_eq!(poll(&mut other, &others_waker), Poll::Ready(Some(7)));
    }
    assert_eq!((flights.len(), script.polls.load(SeqCst)), (0, 12));
    assert!(script.dropped.load(SeqCst));
}

#[test]
fn a_waiting_seat_takes_over_when_the_driver_leaves_and_the_next_one_after_it() {
    let (flights, script) = (Flights::new(None), Script::default());
    let wakers: Vec<Arc<Count>> = (0..4).map(|_| Arc::default()).collect();
    let mut seats = vec![Box::pin(lead(&flights, &script))];
    seats.extend((0..3).map(|_| Box::pin(join(&flights))));
    for (seat, waker) in seats.iter_mut().zip(&wakers) {
        assert!(poll(seat, waker).is_pending());
    }
    let mut seats = seats.into_iter();
    drop(seats.next());
    assert_eq!(wakers[1].0.load(SeqCst), 1, "the next seat is woken to take over");
    drop(seats.next()); // without having been polled
    assert_eq!((wakers[2].0.load(SeqCst), wakers[3].0.load(SeqCst)), (1, 0));
    let mut third = seats.next().unwrap();
    assert!(poll(&mut third, &wakers[2]).is_pending());
    drop(seats.next());
    script.finish();
    assert_eq!(wakers[2].0.load(SeqCst), 2, "the work wakes its new driver");
    assert_eq!(poll(&mut third, &wakers[2]), Poll::Ready(Some(7)));
    assert_eq!(script.polls.load(SeqCst), 3);
}

#[test]
fn work_without_seats_is_dropped_or_handed_over() {
    let (flights, script) = (Flights::new(None), Script::default());
    let (first, second) = (lead(&flights, &script), join(&flights));
    drop(first);
    assert!(!script.dropped.load(SeqCst));
    drop(second);
    assert!(script.dropped.load(SeqCst));
    assert_eq!(flights.len(), 0);

    let handed: Arc<Mutex<Vec<Seat<u8, u32>>>> = Arc::default();
    let to = handed.clone();
    let flights = Flights::new(Some(Arc::new(move |seat| to.lock().unwrap().push(seat))));
    let script = Script::default();
    drop(lead(&flights, &script));
    assert!(!script.dropped.load(SeqCst));
    let mut late = Box::pin(join(&flights));
    assert_eq!(handed.lock().unwrap().len(), 1);
    script.ready.store(true, SeqCst);
    assert_eq!(poll(&mut late, &Arc::default()), Poll::Ready(Some(7)));
    drop(handed.lock().unwrap().pop());
    // The seat that was to finish the work is dropped, too.
    let script = Script::default();
    drop(lead(&flights, &script));
    drop(handed.lock().unwrap().pop());
    assert!(script.dropped.load(SeqCst));
    assert_eq!(flights.len(), 0);
}

#[test]
fn a_panic_loses_the_flight_and_nothing_else() {
    let flights: Flights<u8, u32> = Flights::new(None);
    let JoinOrLead::Leads(leads) = flights.join_or_lead(&1) else { panic!() };
    let mut first = Box::pin(leads.start(Box::pin(async { panic!("on purpose") })));
    let (mut second, waker) = (Box::pin(join(&flights)), Arc::new(Count::default()));
    assert!(poll(&mut second, &waker).is_pending());
    assert!(catch_unwind(AssertUnwindSafe(|| poll(&mut first, &waker))).is_err());
    assert_eq!(waker.0.load(SeqCst), 1);
    assert_eq!(poll(&mut second, &waker), Poll::Ready(None));
    assert!(matches!(flights.join_or_lead(&1), JoinOrLead::Leads(_)));
    // A creator that never sets the work.
    let JoinOrLead::Leads(leads) = flights.join_or_lead(&1) else { panic!() };
    let mut second = Box::pin(join(&flights));
    assert!(poll(&mut second, &waker).is_pending());
    drop(leads);
    assert_eq!(waker.0.load(SeqCst), 2);
    assert_eq!(poll(&mut second, &waker), Poll::Ready(None));
}

#[test]
fn a_superseded_flight_is_not_joined_and_knows_it_at_its_end() {
    let flights: Flights<u8, u32> = Flights::new(None);
    let JoinOrLead::Leads(leads) = flights.join_or_lead(&1) else { panic!() };
    let handle = leads.handle();
    let mut old = Box::pin(leads.start(Box::pin(async move { u32::from(handle.finish(|current| current)) })));
    assert!(flights.supersede(&1, || flights.0.shards.iter().count()) > 0);
    let JoinOrLead::Leads(leads) = flights.join_or_lead(&1) else { panic!("it joined a superseded flight") };
    let handle = leads.handle();
    let mut new = Box::pin(leads.start(Box::pin(async move { u32::from(handle.finish(|current| current)) })));
    // The end of the old flight does not affect the new one.
    assert_eq!(poll(&mut old, &Arc::default()), Poll::Ready(Some(0)));
    assert_eq!(flights.len(), 1);
    assert_eq!(poll(&mut new, &Arc::default()), Poll::Ready(Some(1)));
    assert_eq!(flights.len(), 0);
}

/// Seats join, are polled when woken, and leave, at random. Each seat that stays gets the result,
/// and the work is polled only when needed.
#[test]
fn every_remaining_seat_gets_the_result_in_any_order_of_events() {
    for seed in 0..2000 {
        let entropy = Entropy::from_seed(seed);
        let (flights, script) = (Flights::new(None), Script::default());
        let mut seats = vec![(Box::pin(lead(&flights, &script)), Arc::new(Count(AtomicUsize::new(1))))];
        for _ in 0..entropy.up_to(40) {
            match entropy.up_to(3) {
                0 => seats.push((Box::pin(join(&flights)), Arc::new(Count(AtomicUsize::new(1))))),
                1 if seats.len() > 1 => drop(seats.swap_remove(entropy.up_to(seats.len() as u64 - 1) as usize)),
                _ => {
                    let i = entropy.up_to(seats.len() as u64 - 1) as usize;
                    let (seat, woken) = &mut seats[i];
                    if woken.0.swap(0, SeqCst) > 0 {
                        assert!(poll(seat, woken).is_pending());
                    }
                }
            }
        }
        script.ready.store(true, SeqCst);
        if let Some(waker) = script.wakes.lock().unwrap().take() {
            waker.wake();
        }
        let mut done = 0;
        while let Some(i) = seats.iter().position(|(_, woken)| woken.0.swap(0, SeqCst) > 0) {
            let (seat, woken) = &mut seats[i];
            if let Poll::Ready(result) = poll(seat, woken) {
                assert_eq!(result, Some(7), "seed {seed}");
                drop(seats.swap_remove(i));
                done += 1;
            }
        }
        assert!(done > 0 && seats.is_empty(), "seed {seed}: {} wait without end", seats.len());
        assert_eq!(flights.len(), 0);
    }
}

#[test]
fn a_seat_is_polled_from_several_threads() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).build().unwrap();
    runtime.block_on(async {
        for round in 0..200 {
            let flights: Flights<u8, u32> = Flights::new(None);
            let JoinOrLead::Leads(leads) = flights.join_or_lead(&1) else { panic!() };
            let first = leads.start(Box::pin(async {
                for _ in 0..5 {
                    tokio::task::yield_now().await;
                }
                9
            }));
            let others: Vec<_> = (0..8).map(|_| join(&flights)).collect();
            let tasks: Vec<_> = others.into_iter().map(|seat| runtime.spawn(seat)).collect();
            let first = runtime.spawn(first);
            if round % 2 == 0 {
                first.abort();
            }
            for task in tasks {
                assert_eq!(task.await.unwrap().map(FlightResult::into_inner), Some(9));
            }
        }
    });
}

#[test]
fn a_driver_whose_task_is_not_polled_is_replaced_and_waits_like_the_others() {
    let (flights, script) = (Flights::new(None), Script::default());
    let (mut first, mut second) = (Box::pin(lead(&flights, &script)), Box::pin(join(&flights)));
    let wakes = [Arc::new(Count::default()), Arc::new(Count::default())];
    assert!(poll(&mut first, &wakes[0]).is_pending() && poll(&mut second, &wakes[1]).is_pending());
    // The work was polled since the second seat joined, so its driver is not stalled.
    second.as_mut().get_mut().take_over();
    assert!(poll(&mut second, &wakes[1]).is_pending());
    assert_eq!(script.polls.load(SeqCst), 1);
    second.as_mut().get_mut().take_over();
    assert!(poll(&mut second, &wakes[1]).is_pending());
    assert_eq!(script.polls.load(SeqCst), 2, "the second polls the work");
    script.finish();
    assert_eq!((wakes[0].0.load(SeqCst), wakes[1].0.load(SeqCst)), (0, 1), "the work wakes its new driver");
    assert_eq!(poll(&mut second, &wakes[1]), Poll::Ready(Some(7)));
    assert_eq!(wakes[0].0.load(SeqCst), 1, "the previous driver is woken for the result");
    assert_eq!(poll(&mut first, &wakes[0]), Poll::Ready(Some(7)));
}
