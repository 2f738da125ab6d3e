BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0012');
CREATE TABLE attempt (
	job VARCHAR NOT NULL, 
	number INTEGER NOT NULL, 
	version INTEGER NOT NULL, 
	state VARCHAR NOT NULL, 
	since VARCHAR NOT NULL, 
	pool JSON NOT NULL, 
	market VARCHAR NOT NULL, 
	price_usd_micros_per_hour BIGINT NOT NULL, 
	list_price_usd_micros_per_hour BIGINT NOT NULL, 
	token VARCHAR NOT NULL, 
	planned_at VARCHAR NOT NULL, 
	purpose TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	for_move INTEGER NOT NULL, 
	instance VARCHAR, 
	granted_at VARCHAR, 
	from_checkpoint VARCHAR, 
	head_number INTEGER NOT NULL, 
	desired_sequence INTEGER NOT NULL, 
	desired_want VARCHAR NOT NULL, 
	desired_save INTEGER NOT NULL, 
	launched_at VARCHAR, 
	released_at VARCHAR, 
	restore_failed BOOLEAN NOT NULL, 
	reclaimed BOOLEAN NOT NULL, store_failed BOOLEAN DEFAULT '0' NOT NULL, pause_seconds FLOAT, restore_refused BOOLEAN DEFAULT '0' NOT NULL, desired_partial INTEGER DEFAULT '0' NOT NULL, drained BOOLEAN DEFAULT '0' NOT NULL, pace_seconds FLOAT, pace_saves INTEGER DEFAULT '-1' NOT NULL, pace_why TEXT DEFAULT '' NOT NULL, gpus INTEGER DEFAULT '0' NOT NULL, gave_way_to VARCHAR DEFAULT '' NOT NULL, 
	PRIMARY KEY (job, number), 
	UNIQUE (token)
);
INSERT INTO "attempt" VALUES('chain-115fc1',1,6,'running','2026-11-25T09:53:06.834490+00:00','{"provider": "local", "region": "local", "zone": "local-a", "instance_type": "c6i.large"}','spot',31450,85000,'2ad796b6cabb08b607e8cde54c244053','2026-11-25T09:52:53.884918+00:00','the job needs a machine','',0,'box-2ad796b6cabb','2026-11-25T09:53:02.569837+00:00',NULL,1,0,'run',0,'2026-11-25T09:52:53.939258+00:00',NULL,0,0,0,NULL,0,0,0,NULL,-1,'',0,'');
CREATE TABLE cooldown (
	pool VARCHAR NOT NULL, 
	market VARCHAR NOT NULL, 
	doc JSON NOT NULL, 
	PRIMARY KEY (pool, market)
);
CREATE TABLE decision (
	number INTEGER NOT NULL, 
	at VARCHAR NOT NULL, 
	job VARCHAR NOT NULL, 
	done JSON NOT NULL, 
	rejected JSON NOT NULL, 
	note TEXT NOT NULL, 
	PRIMARY KEY (number)
);
INSERT INTO "decision" VALUES(1,'2026-11-25T09:52:53.860873+00:00','chain-115fc1','["spot local/local-a/c6i.large: the job needs a machine"]','[]','');
INSERT INTO "decision" VALUES(2,'2026-11-25T09:52:53.913342+00:00','chain-115fc1','["box-2ad796b6cabb on local/local-a/c6i.large (spot)"]','[]','');
INSERT INTO "decision" VALUES(3,'2026-11-25T09:52:58.475702+00:00','chain-115fc1','["instance seen: the machine is in the cloud''s listing"]','[]','');
INSERT INTO "decision" VALUES(4,'2026-11-25T09:53:02.525150+00:00','chain-115fc1','["agent ready: the agent stands by"]','[]','');
INSERT INTO "decision" VALUES(5,'2026-11-25T09:53:02.564914+00:00','chain-115fc1','["owns the job, from the beginning"]','[]','');
INSERT INTO "decision" VALUES(6,'2026-11-25T09:53:06.823960+00:00','chain-115fc1','["workload started: the agent says that the job runs"]','[]','');
CREATE TABLE front (
	job VARCHAR NOT NULL, 
	name VARCHAR NOT NULL, 
	listens INTEGER NOT NULL, 
	PRIMARY KEY (job, name), 
	UNIQUE (listens)
);
CREATE TABLE job (
	id VARCHAR NOT NULL, 
	version INTEGER NOT NULL, 
	state VARCHAR NOT NULL, 
	wish VARCHAR NOT NULL, 
	reason TEXT NOT NULL, 
	submitted_at VARCHAR NOT NULL, 
	ended_at VARCHAR, 
	exit_code INTEGER, 
	failures INTEGER NOT NULL, 
	save_at_least INTEGER NOT NULL, 
	moves_asked INTEGER NOT NULL, 
	move JSON, 
	spec JSON NOT NULL, rewind JSON, parent JSON, lineage VARCHAR DEFAULT '' NOT NULL, resumed_at VARCHAR, partials_asked INTEGER DEFAULT '0' NOT NULL, held_by VARCHAR DEFAULT '' NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "job" VALUES('chain-115fc1',2,'active','run','','2026-11-25T09:52:53.844673+00:00',NULL,NULL,0,0,0,'null','{"name": "chain", "command": ["python3", "chain.py", "2400", "0.05"], "folder": ".", "inputs": ["chain.py"], "fetches": [], "mounts": [], "outputs": ["result.txt"], "cpus": 1, "memory_bytes": 1073741824, "gpus": 0, "gpu": "", "market": "spot-first", "priority": 0, "checkpoint_interval_seconds": null, "retries": 0, "environment": {}, "tags": {}, "user": null, "budget_usd_micros": null, "price_max_usd_micros": null, "deadline_seconds": null, "work_seconds": null, "instance_types": [], "on_end": [], "engine": "auto", "tcp": "close", "cpu": "any", "before_freeze": [], "after_restore": [], "hook_seconds": 30.0, "app_signal": "", "app_command": [], "app_file": "", "app_deadline_seconds": 60.0, "app_done_file": "", "app_done_output": "", "app_done_exit": null, "app_restart_command": [], "steps": [], "secrets": {}, "image": "", "entry_point": null, "devices": [], "registry_auth": "", "ports": [], "idle_seconds": null, "idle_cpu": 0.05, "idle_gpu": 0.05, "size_policy": "", "size_memory_min_bytes": null, "size_memory_max_bytes": null, "size_cpus_min": null, "size_cpus_max": null, "size_parameters": {}, "secrets_in_plain_images": false}','null','null','',NULL,0,'');
CREATE TABLE journal (
	number INTEGER NOT NULL, 
	action VARCHAR NOT NULL, 
	begun_at VARCHAR NOT NULL, 
	finished_at VARCHAR, 
	outcome TEXT, 
	PRIMARY KEY (number)
);
INSERT INTO "journal" VALUES(1,'plan/chain-115fc1/1','2026-11-25T09:52:53.866915+00:00','2026-11-25T09:52:53.888383+00:00','spot local/local-a/c6i.large: the job needs a machine');
INSERT INTO "journal" VALUES(2,'launch/chain-115fc1/1','2026-11-25T09:52:53.915751+00:00','2026-11-25T09:52:53.969380+00:00','box-2ad796b6cabb on local/local-a/c6i.large (spot)');
INSERT INTO "journal" VALUES(3,'mark/chain-115fc1/1/instance_seen','2026-11-25T09:52:58.479901+00:00','2026-11-25T09:52:58.490455+00:00','instance seen: the machine is in the cloud''s listing');
INSERT INTO "journal" VALUES(4,'mark/chain-115fc1/1/agent_ready','2026-11-25T09:53:02.533146+00:00','2026-11-25T09:53:02.539131+00:00','agent ready: the agent stands by');
INSERT INTO "journal" VALUES(5,'grant/chain-115fc1/1','2026-11-25T09:53:02.567464+00:00','2026-11-25T09:53:02.570864+00:00','owns the job, from the beginning');
INSERT INTO "journal" VALUES(6,'mark/chain-115fc1/1/workload_started','2026-11-25T09:53:06.831990+00:00','2026-11-25T09:53:06.835307+00:00','workload started: the agent says that the job runs');
CREATE TABLE meta (
	"key" VARCHAR NOT NULL, 
	value TEXT NOT NULL, 
	PRIMARY KEY ("key")
);
INSERT INTO "meta" VALUES('family','913894f39bd5');
CREATE TABLE moment (
	number INTEGER NOT NULL, 
	at VARCHAR NOT NULL, 
	job VARCHAR, 
	attempt INTEGER, 
	kind VARCHAR NOT NULL, 
	text TEXT NOT NULL, 
	data JSON NOT NULL, 
	PRIMARY KEY (number)
);
INSERT INTO "moment" VALUES(1,'2026-11-25T09:52:53.844673+00:00','chain-115fc1',NULL,'submitted','chain: python3 chain.py 2400 0.05','{}');
INSERT INTO "moment" VALUES(2,'2026-11-25T09:52:53.888204+00:00','chain-115fc1',1,'planned','spot local/local-a/c6i.large: the job needs a machine','{"usd_micros_per_hour": 31450, "market": "spot"}');
INSERT INTO "moment" VALUES(3,'2026-11-25T09:52:53.960081+00:00','chain-115fc1',1,'attempt','launch accepted','{"from": "planned", "to": "requested", "event": "launch accepted"}');
INSERT INTO "moment" VALUES(4,'2026-11-25T09:52:53.969051+00:00','chain-115fc1',1,'launched','box-2ad796b6cabb on local/local-a/c6i.large (spot)','{"instance": "box-2ad796b6cabb"}');
INSERT INTO "moment" VALUES(5,'2026-11-25T09:52:58.490246+00:00','chain-115fc1',1,'attempt','instance seen: the machine is in the cloud''s listing','{"from": "requested", "to": "booting", "event": "instance seen"}');
INSERT INTO "moment" VALUES(6,'2026-11-25T09:53:02.538970+00:00','chain-115fc1',1,'attempt','agent ready: the agent stands by','{"from": "booting", "to": "ready", "event": "agent ready"}');
INSERT INTO "moment" VALUES(7,'2026-11-25T09:53:02.570595+00:00','chain-115fc1',1,'attempt','epoch granted: from the beginning','{"from": "ready", "to": "restoring", "event": "epoch granted"}');
INSERT INTO "moment" VALUES(8,'2026-11-25T09:53:02.570755+00:00','chain-115fc1',1,'granted','owns the job, from the beginning','{"checkpoint": null}');
INSERT INTO "moment" VALUES(9,'2026-11-25T09:53:06.835149+00:00','chain-115fc1',1,'attempt','workload started: the agent says that the job runs','{"from": "restoring", "to": "running", "event": "workload started"}');
INSERT INTO "moment" VALUES(10,'2026-11-25T09:53:22.861925+00:00','chain-115fc1',1,'saved','live checkpoint 000001-000001: 4 MB, 2 MB new, frozen 0.22 s, durable after 0.5 s','{"checkpoint": "000001-000001", "kind": "live", "image_bytes": 4277825, "new_bytes": 1545767, "frozen_seconds": 0.2243808899074793, "durable_seconds": 0.46811555000022054}');
INSERT INTO "moment" VALUES(11,'2026-11-25T09:53:22.861925+00:00','chain-115fc1',1,'fit','a final save now would take 0.4 s (0 MB to send) and fits the 115 s that a notice leaves','{"verdict": "fits", "durable_seconds": 0.43696471787989144, "send_bytes": 263902, "start_seconds": 0.12013934273272753, "frozen_seconds": 0.2243808899074793, "window_seconds": 115.0, "base_age_seconds": 0.4709606459364295, "base_age_max_seconds": null, "interval_seconds": 15.0}');
INSERT INTO "moment" VALUES(12,'2026-11-25T09:53:38.872878+00:00','chain-115fc1',1,'saved','live checkpoint 000001-000002: 4 MB, 0 MB new, frozen 0.11 s, durable after 0.2 s','{"checkpoint": "000001-000002", "kind": "live", "image_bytes": 4277827, "new_bytes": 31887, "frozen_seconds": 0.114565284922719, "durable_seconds": 0.20054984814487398}');
CREATE TABLE price (
	job VARCHAR NOT NULL, 
	attempt INTEGER NOT NULL, 
	at VARCHAR NOT NULL, 
	usd_micros_per_hour BIGINT NOT NULL, 
	PRIMARY KEY (job, attempt, at)
);
INSERT INTO "price" VALUES('chain-115fc1',1,'2026-11-25T09:52:53.939258+00:00',31450);
CREATE TABLE sighting (
	instance VARCHAR NOT NULL, 
	sign VARCHAR NOT NULL, 
	at VARCHAR NOT NULL, 
	text TEXT NOT NULL, 
	PRIMARY KEY (instance, sign)
);
CREATE TABLE spot_seen (
	pool VARCHAR NOT NULL, 
	at VARCHAR NOT NULL, 
	up BOOLEAN, 
	PRIMARY KEY (pool, at)
);
INSERT INTO "spot_seen" VALUES('local/local-a/c6i.large','2026-11-25T09:52:58.528944+00:00',1);
CREATE TABLE usage (
	job VARCHAR NOT NULL, 
	attempt INTEGER NOT NULL, 
	at VARCHAR NOT NULL, 
	cpu_seconds FLOAT NOT NULL, 
	frozen_seconds FLOAT NOT NULL, 
	saves INTEGER NOT NULL, 
	doc JSON NOT NULL, 
	PRIMARY KEY (job, attempt)
);
INSERT INTO "usage" VALUES('chain-115fc1',1,'2026-11-25T09:53:38.872878+00:00',0.142462779,3.38946174830198287963e-01,2,'{"job": "chain-115fc1", "attempt": 1, "instance": "box-2ad796b6cabb", "agent_version": "0.1.0", "sequence": 10, "state": "running", "head": 3, "desired": 0, "drain_failed": 0, "frozen": false, "notice": null, "last_save": {"checkpoint": "000001-000002", "sequence": 2, "kind": "live", "image_bytes": 4277827, "new_bytes": 31887, "frozen_seconds": 0.114565284922719, "durable_seconds": 0.20054984814487398, "waited_seconds": 0.0, "ahead_seconds": 3.474997356534004e-06, "read_seconds": 0.0, "device_out_seconds": 0.0, "device_back_seconds": 0.0, "start_seconds": 0.009602672886103392, "sending_seconds": 0.0, "memory_bytes": 3520121}, "saves": 2, "frozen_seconds": 0.3389461748301983, "restore_seconds": null, "warm": null, "fit": {"frozen_seconds": 0.22481057748238525, "send_bytes": 1538718, "durable_seconds": 0.49818236932198484, "window_seconds": 115.0, "verdict": "fits", "reserve_seconds": 15.0, "gain_seconds": 0.0550333976745605, "live_seconds": 0.6183217120547124, "base_age_seconds": 15.840875718044117, "base_age_max_seconds": null, "interval_seconds": 15.0, "hastened": false, "start_seconds": 0.12013934273272753}, "save_stage": "", "save_age_seconds": 0.20120448106899858, "cpu_seconds": 0.142462779, "memory_bytes": 4005888, "arriving_bytes": null, "error": "", "error_kind": "", "protection": "criu", "unprotected": "", "unfit": "", "unfit_kind": "", "waits": "", "processor": "AMD EPYC (2489e07f)", "gpu_driver": "", "steps": [{"name": "main", "number": 0, "log": {}, "began": "2026-11-25T09:53:04.082+00:00", "exit_code": null, "log_end": {}, "ended": "", "cpu_seconds": 0.0}], "hint": "", "hint_memory_bytes": 0, "hint_cores": 0.0, "partial": 0, "partial_error": "", "near_miss": null, "pressed": false, "usage": {"at": 1975475.072681792, "rows": [[197546.0, 10.338, 0.004, 0.004, 3768320.0, 3530752.0, 3530752.0, 3768320.0, 4096.0, 0.0, 0.0, 0.363, 0.0, 0.011, 15622144.0, 56778752.0, 0.0, 0.0, 2.0, null, null, null, null], [197547.0, 4.002, 0.004, 0.004, 3768320.0, 3530752.0, 3530752.0, 3768320.0, 4096.0, 0.0, 0.0, null, null, null, null, null, null, null, null, null, null, null, null]]}, "at": "2026-11-25T09:53:36.781+00:00", "rung": "criu"}');
CREATE TABLE usage_window (
	job VARCHAR NOT NULL, 
	attempt INTEGER NOT NULL, 
	number BIGINT NOT NULL, 
	at VARCHAR NOT NULL, 
	slices INTEGER NOT NULL, 
	"row" JSON NOT NULL, 
	PRIMARY KEY (job, attempt, number)
);
INSERT INTO "usage_window" VALUES('chain-115fc1',1,197544,'2026-11-25T09:53:03.436919+00:00',1,'[197544, 7.963, 0.003, 0.003, 4038656, 3522560, 3522560, 4038656, 4096, 0, 0, 0.622, 0, 0.017, 47951872, 88178688, 496, 496, 2, null, null, null, null]');
INSERT INTO "usage_window" VALUES('chain-115fc1',1,197545,'2026-11-25T09:53:13.436919+00:00',1,'[197545, 9.691, 0.005, 0.008, 3768320, 3530752, 3530752, 3768320, 4096, 4899.214, 0, 0.718, 0, 0.053, 3416064, 1372549120, 70, 70, 2, null, null, null, null]');
INSERT INTO "usage_window" VALUES('chain-115fc1',1,197546,'2026-11-25T09:53:23.800196+00:00',1,'[197546, 10.338, 0.004, 0.004, 3768320, 3530752, 3530752, 3768320, 4096, 0, 0, 0.363, 0, 0.011, 15622144, 56778752, 0, 0, 2, null, null, null, null]');
INSERT INTO "usage_window" VALUES('chain-115fc1',1,197547,'2026-11-25T09:53:33.800196+00:00',1,'[197547, 4.002, 0.004, 0.004, 3768320, 3530752, 3530752, 3768320, 4096, 0, 0, null, null, null, null, null, null, null, null, null, null, null, null]');
CREATE INDEX ix_attempt_state ON attempt (state);
CREATE INDEX ix_decision_job ON decision (job);
CREATE INDEX ix_job_state ON job (state);
CREATE INDEX ix_journal_action ON journal (action);
CREATE INDEX ix_journal_finished_at ON journal (finished_at);
CREATE INDEX ix_moment_job ON moment (job);
CREATE INDEX ix_usage_window_at ON usage_window (at);
COMMIT;
