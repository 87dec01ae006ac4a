//! Compares the services' books with the results of the requests: the books are right, and the report must agree.
use std::collections::HashSet;

use crate::{
    record::{Done, End},
    services::{Books, Service},
};

/// Result of the comparison.
#[derive(Debug, Default)]
pub struct Audit {
    /// Differences between the books and the report.
    pub violations: Vec<String>,
    /// Lost requests with partial effects: their sagas are stuck, or open.
    pub half_done: usize,
    /// Reservations of drones and transports that were released.
    pub released: u64,
    /// Second reservations for one delivery.
    pub double_reservations: u32,
    /// Reservations for deliveries that are not scheduled.
    pub left_reservations: u32,
    /// Requests repeated after their effect because the response was lost, and answered without another effect.
    pub repeats: u64,
}

impl Audit {
    pub fn new<'a>(done: impl IntoIterator<Item = &'a Done> + Clone, books: &[Books; 5]) -> Self {
        let sum = |of: fn(&Books) -> u64| books.iter().map(of).sum();
        let mut audit =
            Self { repeats: sum(|books| books.repeats), released: sum(|books| books.released), ..Self::default() };
        // Two deliveries may name one package, which then exists once.
        let packages: HashSet<&str> =
            done.clone().into_iter().filter(|d| d.end != End::Rejected).map(|d| d.package.as_str()).collect();
        let mut accounted = [0; 5];
        for request in done {
            audit.request(request, books, &packages, &mut accounted);
        }
        for service in [Service::Transport, Service::Drone, Service::Delivery] {
            let all: u32 = books[service as usize].effects.values().sum();
            if all != accounted[service as usize] {
                let accounted = accounted[service as usize];
                audit.violations.push(format!("{service}: {all} in its books, {accounted} of them for a request"));
            }
        }
        audit
    }

    fn request(&mut self, request: &Done, books: &[Books; 5], packages: &HashSet<&str>, accounted: &mut [u32; 5]) {
        let id = request.id.to_string();
        let did = |service: Service, key: &str| books[service as usize].effects.get(key).copied().unwrap_or(0);
        let package = if packages.contains(&*request.package) && request.end == End::Rejected {
            0 // it is another request's
        } else {
            did(Service::Package, &request.package)
        };
        let found = [package, did(Service::Transport, &id), did(Service::Drone, &id), did(Service::Delivery, &id)];
        for (service, n) in Service::ALL[1..].iter().zip(found) {
            accounted[*service as usize] += n;
        }
        for n in [found[1], found[2]] {
            self.double_reservations += n.saturating_sub(1);
            self.left_reservations += if request.end == End::Scheduled { 0 } else { n };
        }
        let wanted = match &request.end {
            End::Scheduled => [1, u32::from(request.transport), 1, 1],
            End::Rejected => [0; 4],
            End::Lost(_) => {
                // A package stays, because another request may name it, too.
                self.half_done += usize::from(found[1..] != [0; 3]);
                return;
            }
        };
        if found != wanted {
            let end = &request.end;
            self.violations.push(format!("{id} is {end:?}, and has (package, transport, drone, delivery) {found:?}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use uuid::Uuid;

    fn done(n: u128, package: &str, end: End) -> Done {
        let (at, took) = (Duration::ZERO, Duration::ZERO);
        Done { at, took, id: Uuid::from_u128(n), owner: "a".into(), package: package.into(), transport: false, end }
    }

    /// Returns books in which each of the requests 1..=n has a package, a drone and a delivery.
    fn books(n: u128) -> [Books; 5] {
        let mut books: [Books; 5] = Default::default();
        for n in 1..=n {
            let id = Uuid::from_u128(n).to_string();
            books[Service::Package as usize].effects.insert(format!("p{n}"), 1);
            books[Service::Drone as usize].effects.insert(id.clone(), 1);
            books[Service::Delivery as usize].effects.insert(id, 1);
        }
        books
    }

    #[test]
    fn books_that_agree_pass() {
        let audit = Audit::new(&[done(1, "p1", End::Scheduled), done(2, "p2", End::Rejected)], &books(1));
        assert!(audit.violations.is_empty() && audit.half_done == 0);
    }

    #[test]
    fn a_second_drone_is_found_and_so_is_one_for_nobody() {
        let scheduled = [done(1, "p1", End::Scheduled)];
        let mut twice = books(1);
        *twice[Service::Drone as usize].effects.values_mut().next().unwrap() = 2;
        let audit = Audit::new(&scheduled, &twice);
        assert_eq!((audit.violations.len(), audit.double_reservations, audit.left_reservations), (1, 1, 0));
        assert!(!Audit::new(&scheduled, &books(2)).violations.is_empty());
    }

    #[test]
    fn a_drone_for_a_rejected_request_is_found_and_a_shared_package_is_none() {
        let audit = Audit::new(&[done(1, "p1", End::Rejected)], &books(1));
        assert_eq!((audit.violations.len(), audit.double_reservations, audit.left_reservations), (1, 0, 1));
        let shared = [done(1, "p1", End::Scheduled), done(2, "p1", End::Rejected)];
        assert!(Audit::new(&shared, &books(1)).violations.is_empty());
    }

    #[test]
    fn a_lost_request_with_an_effect_is_half_done() {
        let mut books = books(1);
        books[Service::Delivery as usize].effects.clear();
        let audit = Audit::new(&[done(1, "p1", End::Lost("away".into()))], &books);
        assert!(audit.violations.is_empty() && audit.half_done == 1 && audit.left_reservations == 1);
    }
}
