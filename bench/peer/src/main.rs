//! `peer CONFIG.json`: one backup or one restore by kafka-backup-core, whose `Config` the file holds.

use std::error::Error;
use std::fs::File;

use kafka_backup_core::backup::BackupEngine;
use kafka_backup_core::config::{Config, Mode};
use kafka_backup_core::RestoreEngine;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: peer CONFIG.json")?;
    let config: Config = serde_json::from_reader(File::open(path)?)?;
    match config.mode {
        Mode::Backup => BackupEngine::new(config).await?.run().await?,
        Mode::Restore => {
            RestoreEngine::new(config)?.run().await?;
        }
    }
    Ok(())
}
