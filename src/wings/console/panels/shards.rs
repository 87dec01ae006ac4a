//! Shard maps.
use super::super::{
    panel::{Look, Order, Panel, Source, View, ready, unknown},
    readout::{ReadOut, Table},
};
use crate::{
    port::BoxFuture,
    sharding::{ShardDirectory, Step},
};

/// Maximum number of chunks that are listed.
const LISTED: usize = 100;

impl Panel for ShardDirectory {
    fn view(&self) -> View {
        View(Box::new(self.clone()))
    }
}

impl Source for ShardDirectory {
    fn kind(&self) -> &'static str {
        "shard map"
    }

    fn read<'a>(&'a self, _: &'a Look) -> BoxFuture<'a, Result<ReadOut, String>> {
        let map = self.map();
        let mut out = match map.moving() {
            None => ReadOut::new("at rest"),
            Some(work) => {
                let step = match work.step {
                    Step::Copying => "its rows are copied",
                    Step::Frozen => "it accepts no writes",
                    Step::Closed => "it accepts no requests",
                    Step::Switched => "the rows of the source are deleted",
                    Step::Undoing => "it is rolled back",
                };
                let mut out = ReadOut::new("moving");
                out.why = format!("{} moves from shard {} to {}: {step}", work.chunk, work.from, work.to);
                out
            }
        };
        let chunks = map.chunks();
        out = out.fact("version", map.version()).fact("shards", map.shards().len()).fact("chunks", chunks.len());
        let caption = match chunks.len() {
            0..=LISTED => "Chunks".to_owned(),
            all => format!("Chunks, the first {LISTED} of {all}"),
        };
        let mut table = Table::new(caption, &["chunk", "shard"]);
        for (chunk, shard) in chunks.into_iter().take(LISTED) {
            table.push([chunk.to_string(), shard.map_or_else(|| "none".to_owned(), |shard| shard.to_string())]);
        }
        ready(Ok(out.table(table)))
    }

    fn act<'a>(&'a self, order: &'a Order) -> BoxFuture<'a, Result<String, String>> {
        ready(unknown(order))
    }
}
