"""One task of a cluster, as a plain server: python server.py JOB TASK ps=HOST:PORT,HOST:PORT worker=HOST:PORT"""

import sys

import dovetail as tf

job, task, *hosts = sys.argv[1:]
cluster = tf.train.ClusterSpec({name: tasks.split(",") for name, tasks in (h.split("=") for h in hosts)})
server = tf.train.Server(cluster, job_name=job, task_index=int(task))
print("serving", server.target, flush=True)
server.join()
