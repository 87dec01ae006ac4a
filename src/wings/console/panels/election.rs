//! Elections.
use super::super::{
    panel::{Look, Order, Panel, Source, View, unknown},
    readout::{Note, ReadOut, Trouble, spoken},
};
use crate::{
    leader_election::{Leader, LeaderElection},
    port::BoxFuture,
};

impl Panel for LeaderElection {
    fn view(&self) -> View {
        View(Box::new(self.clone()))
    }
}

impl Source for LeaderElection {
    fn kind(&self) -> &'static str {
        "election"
    }

    fn read<'a>(&'a self, look: &'a Look) -> BoxFuture<'a, Result<ReadOut, String>> {
        Box::pin(async move {
            let health = self.health();
            let (out, leader) = match self.leader() {
                Leader::Unknown => {
                    let why = "this process knows of no leader; one that does not campaign never does";
                    (ReadOut::new("without a leader").trouble(Trouble::Leaderless, why), None)
                }
                Leader::Own(token) if health.healthy => {
                    (ReadOut::new("led by this process"), Some((self.holder().to_owned(), token)))
                }
                Leader::Own(token) => {
                    let why = "this process leads, and did not renew its term in time";
                    (ReadOut::new("hanging").trouble(Trouble::Leaderless, why), Some((self.holder().to_owned(), token)))
                }
                Leader::Other { holder, token } => (ReadOut::new("led by another process"), Some((holder, token))),
            };
            let out = match leader {
                Some((holder, token)) => {
                    let effect =
                        format!("Asks {holder} to resign. Another candidate is elected; until then nobody leads.");
                    out.fact("leader", &holder).fact("token", token).action(
                        "resign",
                        "Ask to resign",
                        effect,
                        format!("{token}/{holder}"),
                        Note::None,
                    )
                }
                None => out,
            };
            let out = match self.term() {
                Some(term) => {
                    let left = term.deadline().saturating_since(look.clock.now());
                    out.fact("term ends in", spoken(left))
                }
                None => out,
            };
            let out = out.fact("candidate", self.holder()).fact("view", "as this process last saw it");
            Ok(match health.since_renewal {
                Some(since) => out.fact("last renewal", format!("{} ago", spoken(since))),
                None => out,
            })
        })
    }

    fn act<'a>(&'a self, order: &'a Order) -> BoxFuture<'a, Result<String, String>> {
        Box::pin(async move {
            if order.action != "resign" {
                return unknown(order);
            }
            let (_, shown) = order.version.split_once('/').unwrap_or_default();
            match self.request_resign_if(|holder| holder == shown).await {
                Ok(true) => Ok("The leader was asked to resign.".to_owned()),
                Ok(false) => Err(format!("{shown} does not lead any more")),
                Err(error) => Err(error.to_string()),
            }
        })
    }
}
