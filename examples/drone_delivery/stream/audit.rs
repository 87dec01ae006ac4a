//! The end of a run: each accepted event is in the topic, and each that was passed has an ended saga, whose effects agree.
use std::{collections::HashMap, error::Error};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use steadfast::{
    saga::{Saga, SagaPhase},
    stream::{Read, StreamProcessor, Topic},
};
use uuid::Uuid;

use super::{Place, load::Accepted};
use crate::{
    request::Request,
    services::{Running, Service},
};

#[derive(Debug, Default)]
pub struct Audit {
    pub scheduled: u64,
    pub rejected: u64,
    pub dead_lettered: u64,
    pub lost: u64,
    pub half_done: u64,
    pub double_reservations: u64,
    pub left_reservations: u64,
    pub waiting: u64,
    pub violations: Vec<String>,
}

/// Returns the number of events that are not finished.
pub async fn waiting(processor: &StreamProcessor) -> Result<u64, Box<dyn Error>> {
    Ok(processor.read_state().await?.iter().map(|part| part.lag).sum())
}

/// Reads the whole topic, and compares it with what was accepted. Returns the ids of each partition, in order.
async fn read_topic(place: &Place, accepted: &Accepted, audit: &mut Audit) -> Result<Vec<Vec<Uuid>>, Box<dyn Error>> {
    let mut all = Vec::new();
    for partition in 0..place.topic.partitions() {
        let mut ids: Vec<Uuid> = Vec::new();
        loop {
            let page = place.topic.read(partition, Read::from(ids.len() as u64 + 1).max(1000)).await?;
            if page.is_empty() {
                break;
            }
            for event in page {
                if event.position.offset != ids.len() as u64 + 1 {
                    return Err(format!("{} came behind {partition}/{}", event.position, ids.len()).into());
                }
                let id = event.event.key.as_deref().and_then(|key| Uuid::try_parse(key).ok()).unwrap_or_default();
                ids.push(id);
            }
        }
        for (index, expected) in accepted.ids(partition).into_iter().enumerate() {
            if !expected.is_nil() && ids.get(index) != Some(&expected) {
                audit.lost += 1;
                audit.violations.push(format!("accepted at {partition}/{}, and not there: {expected}", index + 1));
            }
        }
        all.push(ids);
    }
    Ok(all)
}

/// Effects of a delivery: drones, transports, deliveries.
type Effects = HashMap<String, [u32; 3]>;

async fn effects(services: &[Running]) -> Result<Effects, Box<dyn Error>> {
    let mut effects = Effects::new();
    for (at, service) in [Service::Drone, Service::Transport, Service::Delivery].into_iter().enumerate() {
        for (id, count) in services[service as usize].books().await?.effects {
            effects.entry(id).or_default()[at] += count;
        }
    }
    Ok(effects)
}

pub async fn audit(
    place: &Place,
    accepted: &Accepted,
    services: &[Running],
    (processor, sagas): (&StreamProcessor, &Saga<Request>),
) -> Result<Audit, Box<dyn Error>> {
    let mut audit = Audit::default();
    let topic = read_topic(place, accepted, &mut audit).await?;
    let mut letters = std::collections::HashSet::new();
    for letter in place.letters.peek(1000).await? {
        letters.insert(serde_json::from_slice::<Request>(&letter.body).map(|request| request.id).unwrap_or_default());
    }
    audit.dead_lettered = place.letters.depth().await?.total();
    let mut effects = effects(services).await?;
    let mut passed = Vec::new();
    for (part, ids) in processor.read_state().await?.iter().zip(&topic) {
        audit.waiting += ids.len() as u64 - part.watermark.min(ids.len() as u64);
        passed.extend(ids.iter().take(part.watermark as usize).copied());
    }
    let read =
        stream::iter(passed).map(|id| async move { Ok::<_, Box<dyn Error>>((id, sagas.read(&id.to_string()).await?)) });
    let mut read = read.buffer_unordered(64);
    while let Some((id, status)) = read.try_next().await? {
        let [drones, transports, deliveries] = effects.remove(&id.to_string()).unwrap_or_default();
        audit.double_reservations += u64::from(drones.saturating_sub(1) + transports.saturating_sub(1));
        match status.as_ref().map(|status| (status.phase, &status.state)) {
            Some((SagaPhase::Completed, request)) => {
                audit.scheduled += 1;
                let wanted = [1, u32::from(request.needs_transport()), 1];
                if [drones.min(1), transports.min(1), deliveries] != wanted {
                    audit.half_done += 1;
                    audit.violations.push(format!("{id} is scheduled, and has {drones} {transports} {deliveries}"));
                }
            }
            Some((SagaPhase::Compensated, _)) => {
                audit.rejected += 1;
                audit.left_reservations += u64::from(drones + transports);
                if deliveries > 0 {
                    audit.half_done += 1;
                }
            }
            _ if letters.contains(&id) => {}
            // Passed, and nothing carries it on.
            Some((phase, _)) => {
                audit.half_done += 1;
                audit.violations.push(format!("{id} was passed, and is {phase:?}"));
            }
            None => {
                audit.lost += 1;
                audit.violations.push(format!("{id} was passed, and has no saga"));
            }
        }
    }
    // Those behind the checkpoint may be in progress, but none twice.
    let doubled = |of: &[u32; 3]| of.iter().filter(|count| **count > 1).count() as u64;
    audit.double_reservations += effects.values().map(doubled).sum::<u64>();
    audit.violations.truncate(20);
    Ok(audit)
}
