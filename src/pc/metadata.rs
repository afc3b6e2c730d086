//! What makes sense of PC samples: the names of the stall reasons, and what turns samples into time.

use std::ffi::c_char;
use std::mem::size_of_val;
use std::sync::OnceLock;

use parcagpu_abi::pc_sample::{STALL_REASON_NAME_LEN, STALL_REASON_SLOTS};

use crate::errors;
use crate::probes::{self, touch};
use crate::sheltered::Sheltered;

/// Names by index, zero-padded; always readable as a whole.
struct Reasons {
    table: [[u8; STALL_REASON_NAME_LEN]; STALL_REASON_SLOTS],
    /// Highest index in use and one.
    count: u32,
}

/// What `gpu_config` tells of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuConfig {
    /// Ordinal.
    pub device: u32,
    /// log2 of the period in cycles.
    pub factor: u32,
    /// kHz.
    pub clock_khz: u32,
    /// SMs.
    pub sm_count: u32,
}

static REASONS: OnceLock<Reasons> = OnceLock::new();
static CONFIGS: Sheltered<Vec<GpuConfig>> = Sheltered::new();

/// Keeps the names; the first context's, since all have the same. Reasons past the table are told.
pub fn keep_reasons(reasons: &[(u32, Vec<u8>)]) {
    let mut made = false;
    let table = REASONS.get_or_init(|| {
        made = true;
        table_of(reasons)
    });
    let beyond = reasons
        .iter()
        .filter(|(index, _)| *index as usize >= STALL_REASON_SLOTS)
        .count();
    if made && beyond > 0 {
        errors::report(
            0,
            "pc sampling",
            &format!(
                "this GPU has {} stall reasons; the {beyond} with an index above {} are not told",
                reasons.len(),
                STALL_REASON_SLOTS - 1
            ),
        );
    }
    if made {
        table.fire();
    }
}

fn table_of(reasons: &[(u32, Vec<u8>)]) -> Reasons {
    let mut table = [[0; STALL_REASON_NAME_LEN]; STALL_REASON_SLOTS];
    let mut count = 0;
    for (index, name) in reasons {
        let Some(slot) = table.get_mut(*index as usize) else {
            continue;
        };
        let len = name.len().min(STALL_REASON_NAME_LEN - 1);
        slot[..len].copy_from_slice(&name[..len]);
        count = count.max(index + 1);
    }
    Reasons { table, count }
}

impl Reasons {
    fn fire(&self) {
        if !probes::stall_reason_map::enabled() {
            return;
        }
        // SAFETY: the table is readable.
        unsafe { touch::bytes(self.table.as_ptr(), size_of_val(&self.table)) };
        probes::stall_reason_map::fire(self.table.as_ptr().cast::<c_char>(), self.count);
    }
}

/// Keeps and tells what a device needs.
pub fn keep_config(config: GpuConfig) {
    let known = CONFIGS.with(|configs| {
        let known = configs.contains(&config);
        configs.retain(|kept| kept.device != config.device);
        configs.push(config);
        known
    });
    if known != Some(true) {
        fire_config(config);
    }
}

fn fire_config(config: GpuConfig) {
    if probes::gpu_config::enabled() {
        probes::gpu_config::fire(
            config.device,
            config.factor,
            config.clock_khz,
            config.sm_count,
        );
    }
}

/// Tells the names again.
pub fn replay_reasons() {
    if let Some(reasons) = REASONS.get() {
        reasons.fire();
    }
}

/// Tells every device again.
pub fn replay_configs() {
    let configs = CONFIGS.with(|configs| configs.clone());
    configs.into_iter().flatten().for_each(fire_config);
}

#[cfg(test)]
mod tests {
    use super::{STALL_REASON_NAME_LEN, table_of};

    #[test]
    fn the_table_is_by_index_padded_and_bounded() {
        let long = vec![b'x'; 200];
        let table = table_of(&[
            (3, b"wait".to_vec()),
            (0, long),
            (64, b"beyond".to_vec()),
            (u32::MAX, b"beyond".to_vec()),
        ]);
        assert_eq!(table.count, 4);
        assert_eq!(&table.table[3][..6], b"wait\0\0");
        assert_eq!(table.table[0][STALL_REASON_NAME_LEN - 1], 0);
        assert_eq!(table.table[1], [0; STALL_REASON_NAME_LEN]);
    }
}
