//! The world outside the service: a catalogue of prices, and a payment gateway that fails at times.
use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

use steadfast::{entropy::Entropy, time::Clock};

use crate::{
    MS, Result,
    common::{answer, serve},
};

pub const PRODUCTS: u64 = 24;

#[derive(Debug)]
pub struct World {
    /// Each change of a price raises it, so that a lower price is an older one.
    prices: Mutex<Vec<u64>>,
    is_down: AtomicBool,
    entropy: Entropy,
}

impl World {
    pub async fn open() -> Result<(Arc<Self>, SocketAddr)> {
        let prices = Mutex::new(vec![1_000; PRODUCTS as usize]);
        let world = Arc::new(Self { prices, is_down: AtomicBool::new(false), entropy: Entropy::from_os() });
        let serving = world.clone();
        let address = serve(move |request| {
            let world = serving.clone();
            async move { world.respond(request.uri().path()).await }
        });
        Ok((world, address.await?))
    }

    /// Lets the gateway fail, or work again.
    pub fn set_down(&self, is_down: bool) {
        self.is_down.store(is_down, SeqCst);
    }

    async fn respond(&self, path: &str) -> crate::common::Answer {
        let mut words = path.trim_start_matches('/').split('/');
        let (what, number) = (words.next(), words.next().and_then(|number| number.parse::<u64>().ok()));
        // An answer has the price from the beginning of the request: a change in between makes it stale.
        let response = match (what, number) {
            (Some("price"), Some(product)) => {
                self.price(product, 0).map_or_else(|| answer(404, ""), |p| answer(200, p))
            }
            (Some("raise"), Some(product)) => {
                self.price(product, 1).map_or_else(|| answer(404, ""), |p| answer(200, p))
            }
            (Some("pay"), Some(_)) if self.is_down.load(SeqCst) => answer(503, "the gateway is down"),
            (Some("pay"), Some(order)) => answer(200, order),
            _ => answer(404, ""),
        };
        Clock::tokio().sleep(MS(2 + self.entropy.up_to(18))).await;
        response
    }

    /// Raises a price by so much, and returns it.
    fn price(&self, product: u64, by: u64) -> Option<u64> {
        let mut prices = self.prices.lock().unwrap_or_else(PoisonError::into_inner);
        let price = prices.get_mut(usize::try_from(product).ok()?)?;
        *price += by;
        Some(*price)
    }
}
