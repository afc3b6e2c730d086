//! The tree of the flame graph.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::super::folded::stacks;
use super::super::view::View;
use super::number;

/// Nodes kept; smaller ones are part of the node above them.
const NODES_MAX: usize = 20_000;

#[derive(Default)]
struct Node {
    name: u32,
    total: u128,
    children: Vec<usize>,
}

/// `names`, and per node, outer before inner: index of its name, depth, GPU time in ns.
pub fn flame(view: &View<'_>) -> Value {
    let mut names: HashMap<String, u32> = HashMap::new();
    let mut list: Vec<String> = Vec::new();
    let mut nodes = vec![Node::default()];
    let mut children: HashMap<(usize, u32), usize> = HashMap::new();
    let mut intern = |name: &str| match names.get(name) {
        Some(known) => *known,
        None => {
            // More than 2^32 frames do not fit into a recording.
            let index = list.len() as u32;
            names.insert(name.to_owned(), index);
            list.push(name.to_owned());
            index
        }
    };
    nodes[0].name = intern("all");
    for (stack, ns) in stacks(view) {
        let mut at = 0;
        nodes[0].total += ns;
        for word in stack.split(';') {
            let name = intern(word);
            let next = *children.entry((at, name)).or_insert_with(|| {
                nodes.push(Node {
                    name,
                    ..Node::default()
                });
                nodes.len() - 1
            });
            if nodes[next].total == 0 {
                nodes[at].children.push(next);
            }
            nodes[next].total += ns;
            at = next;
        }
    }
    let smallest = smallest(&nodes);
    let mut rows: Vec<(u32, u32, u64)> = Vec::new();
    let mut cut = 0;
    let mut pending = vec![(0, 0)];
    while let Some((at, depth)) = pending.pop() {
        let node = &nodes[at];
        if node.total < smallest {
            cut += 1;
            continue;
        }
        rows.push((node.name, depth, number(node.total)));
        let mut inner = node.children.clone();
        inner.sort_by_key(|child| nodes[*child].total);
        pending.extend(inner.into_iter().map(|child| (child, depth + 1)));
    }
    json!({
        "names": list,
        "nodes": rows.iter().map(|(n, d, t)| json!([n, d, t])).collect::<Vec<_>>(),
        "cut": (cut > 0).then(|| format!("{} small frames are not drawn; their time is in the frame above", crate::text::count(cut))),
    })
}

/// Time of the smallest node that is kept.
fn smallest(nodes: &[Node]) -> u128 {
    let mut totals: Vec<u128> = nodes.iter().map(|n| n.total).collect();
    if totals.len() <= NODES_MAX {
        return 0;
    }
    totals.sort_unstable_by(|a, b| b.cmp(a));
    totals[NODES_MAX]
}
