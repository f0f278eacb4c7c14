// SPDX-License-Identifier: GPL-2.0-only
/*
 * A virtual Jetson's clocks and identity.
 *
 * GPL-2.0-only, unlike the rest of this project, because it is linked into the Linux kernel and uses symbols the kernel
 * offers to GPL modules alone.
 *
 * It adds to an ordinary PC kernel what software on an Orin Nano looks for:
 *   - a devfreq device 17000000.gpu with the clock table of an Orin Nano 8GB Super. The device is real for the devfreq
 *     core, so range limits, clamping and notification of min_freq and max_freq are the kernel's own;
 *   - its governor nvhost_podgov, which follows a load figure. Nothing computes on this GPU, so the figure is what was
 *     written to it: 0 after boot, and that is the situation a clock floor exists for;
 *   - a cooling device cpu-throttle-alert, which such a board switches on when it takes clocks down. Nothing heats this
 *     board, so its state is what was written to it;
 *   - of_node/name and of_node/compatible below the device, and /proc/device-tree/{model,compatible}. A PC kernel has
 *     no device tree (CONFIG_OF is off), hence plain directories in the places where the kernel would have put them.
 *
 * It changes no clock of any hardware.
 */
#include <linux/devfreq.h>
#include <linux/kobject.h>
#include <linux/module.h>
#include <linux/platform_device.h>
#include <linux/pm_opp.h>
#include <linux/proc_fs.h>
#include <linux/sysfs.h>
#include <linux/thermal.h>

#if __has_include(<linux/devfreq-governor.h>)
#include <linux/devfreq-governor.h>
#else
/*
 * Until the header above became public, a governor outside the kernel's tree had to state this interface itself. It
 * must have the field order of the running kernel, which the boot test confirms by switching clocks through it.
 */
#define DEVFREQ_GOV_START 0x1
#define DEVFREQ_NAME_LEN 16

struct devfreq_governor {
	struct list_head node;
	const char name[DEVFREQ_NAME_LEN];
	const u64 attrs;
	const u64 flags;
	int (*get_target_freq)(struct devfreq *devfreq, unsigned long *freq);
	int (*event_handler)(struct devfreq *devfreq, unsigned int event, void *data);
};

int devfreq_add_governor(struct devfreq_governor *governor);
int devfreq_remove_governor(struct devfreq_governor *governor);
int update_devfreq(struct devfreq *devfreq);
#endif

#define GPU_DEVICE "17000000.gpu"
#define GOVERNOR "nvhost_podgov"
#define LOAD_MAX 1000 /* the load file counts in per mille */
#define LOAD_LOW 300  /* at or below this the lowest clock does */
#define LOAD_HIGH 700 /* at or above this only the highest does */
#define THROTTLE_DEVICE "cpu-throttle-alert"
#define THROTTLE_MAX 1

static const unsigned long gpu_hz[] = {
	306000000, 408000000, 510000000, 612000000, 714000000, 816000000, 918000000, 1020000000,
};

static const char tree_model[] = "NVIDIA Jetson Orin Nano Engineering Reference Developer Kit Super";
static const char tree_compatible[] = "nvidia,p3768-0000+p3767-0005-super\0"
				      "nvidia,p3767-0005\0"
				      "nvidia,tegra234";

static struct platform_device *gpu;
static struct devfreq *gpu_devfreq;
static struct kobject *gpu_node;
static struct proc_dir_entry *tree;
static unsigned long gpu_current_hz;
static unsigned int gpu_load;
static struct thermal_cooling_device *throttle;
static unsigned long throttle_current;

/* ---- governor ---- */

static int podgov_target(struct devfreq *devfreq, unsigned long *hz)
{
	unsigned int load = READ_ONCE(gpu_load);
	size_t steps = ARRAY_SIZE(gpu_hz) - 1;

	if (load <= LOAD_LOW)
		*hz = gpu_hz[0];
	else if (load >= LOAD_HIGH)
		*hz = gpu_hz[steps];
	else
		*hz = gpu_hz[DIV_ROUND_UP((load - LOAD_LOW) * steps, LOAD_HIGH - LOAD_LOW)];
	return 0;
}

static int podgov_event(struct devfreq *devfreq, unsigned int event, void *data)
{
	int ret = 0;

	if (event == DEVFREQ_GOV_START) {
		mutex_lock(&devfreq->lock);
		ret = update_devfreq(devfreq);
		mutex_unlock(&devfreq->lock);
	}
	return ret;
}

static struct devfreq_governor podgov = {
	.name = GOVERNOR,
	.get_target_freq = podgov_target,
	.event_handler = podgov_event,
};

/* ---- device ---- */

static int gpu_target(struct device *dev, unsigned long *hz, u32 flags)
{
	size_t i, last = ARRAY_SIZE(gpu_hz) - 1;

	/* The smallest entry that satisfies the request, or with this (oddly named) flag the largest within it. */
	for (i = 0; i < last && gpu_hz[i] < *hz; i++)
		;
	if ((flags & DEVFREQ_FLAG_LEAST_UPPER_BOUND) && gpu_hz[i] > *hz && i > 0)
		i--;
	gpu_current_hz = gpu_hz[i];
	*hz = gpu_current_hz;
	return 0;
}

static int gpu_get_hz(struct device *dev, unsigned long *hz)
{
	*hz = gpu_current_hz;
	return 0;
}

static int gpu_status(struct device *dev, struct devfreq_dev_status *stat)
{
	stat->busy_time = READ_ONCE(gpu_load);
	stat->total_time = LOAD_MAX;
	stat->current_frequency = gpu_current_hz;
	return 0;
}

static struct devfreq_dev_profile gpu_profile = {
	.target = gpu_target,
	.get_cur_freq = gpu_get_hz,
	.get_dev_status = gpu_status,
};

static ssize_t load_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%u\n", READ_ONCE(gpu_load));
}

static ssize_t load_store(struct device *dev, struct device_attribute *attr, const char *buf, size_t count)
{
	unsigned int load;
	int ret = kstrtouint(buf, 10, &load);

	if (ret)
		return ret;
	if (load > LOAD_MAX)
		return -EINVAL;
	WRITE_ONCE(gpu_load, load);
	mutex_lock(&gpu_devfreq->lock);
	ret = update_devfreq(gpu_devfreq);
	mutex_unlock(&gpu_devfreq->lock);
	return ret ? ret : count;
}
static DEVICE_ATTR_RW(load);

/* ---- cooling device ---- */

static int throttle_get_max(struct thermal_cooling_device *device, unsigned long *state)
{
	*state = THROTTLE_MAX;
	return 0;
}

static int throttle_get(struct thermal_cooling_device *device, unsigned long *state)
{
	*state = READ_ONCE(throttle_current);
	return 0;
}

static int throttle_set(struct thermal_cooling_device *device, unsigned long state)
{
	if (state > THROTTLE_MAX)
		return -EINVAL;
	WRITE_ONCE(throttle_current, state);
	return 0;
}

static const struct thermal_cooling_device_ops throttle_ops = {
	.get_max_state = throttle_get_max,
	.get_cur_state = throttle_get,
	.set_cur_state = throttle_set,
};

/* ---- device tree look-alikes; properties end in NUL, as in a real tree ---- */

static ssize_t name_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	memcpy(buf, "gpu", sizeof("gpu"));
	return sizeof("gpu");
}

static ssize_t compatible_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	memcpy(buf, "nvidia,ga10b", sizeof("nvidia,ga10b"));
	return sizeof("nvidia,ga10b");
}

static struct kobj_attribute node_name = __ATTR_RO(name);
static struct kobj_attribute node_compatible = __ATTR_RO(compatible);
static const struct attribute *node_attrs[] = { &node_name.attr, &node_compatible.attr, NULL };

static ssize_t model_read(struct file *file, char __user *buf, size_t count, loff_t *pos)
{
	return simple_read_from_buffer(buf, count, pos, tree_model, sizeof(tree_model));
}

static ssize_t compatible_read(struct file *file, char __user *buf, size_t count, loff_t *pos)
{
	return simple_read_from_buffer(buf, count, pos, tree_compatible, sizeof(tree_compatible));
}

static const struct proc_ops model_ops = { .proc_read = model_read, .proc_lseek = default_llseek };
static const struct proc_ops compatible_ops = { .proc_read = compatible_read, .proc_lseek = default_llseek };

static int tree_add(void)
{
	tree = proc_mkdir("device-tree", NULL);
	if (!tree)
		return -ENOMEM;
	if (!proc_create("model", 0444, tree, &model_ops) || !proc_create("compatible", 0444, tree, &compatible_ops)) {
		proc_remove(tree);
		return -ENOMEM;
	}
	return 0;
}

/* The devfreq core takes the clock table from the device's operating points. */
static int points_add(void)
{
	size_t i;
	int ret = 0;

	for (i = 0; i < ARRAY_SIZE(gpu_hz) && !ret; i++)
		ret = dev_pm_opp_add(&gpu->dev, gpu_hz[i], 0);
	if (ret)
		dev_pm_opp_remove_all_dynamic(&gpu->dev);
	return ret;
}

static int node_add(void)
{
	int ret;

	gpu_node = kobject_create_and_add("of_node", &gpu->dev.kobj);
	if (!gpu_node)
		return -ENOMEM;
	ret = sysfs_create_files(gpu_node, node_attrs);
	if (ret)
		kobject_put(gpu_node);
	return ret;
}

static int __init vjetson_init(void)
{
	int ret = tree_add();

	if (ret)
		return ret;
	ret = devfreq_add_governor(&podgov);
	if (ret)
		goto remove_tree;
	gpu = platform_device_register_simple(GPU_DEVICE, PLATFORM_DEVID_NONE, NULL, 0);
	if (IS_ERR(gpu)) {
		ret = PTR_ERR(gpu);
		goto remove_governor;
	}
	/* Before the devfreq entry, so that whoever sees the entry can identify it. */
	ret = node_add();
	if (ret)
		goto remove_device;
	ret = points_add();
	if (ret)
		goto remove_node;
	gpu_current_hz = gpu_hz[0];
	gpu_profile.initial_freq = gpu_hz[0];
	gpu_devfreq = devfreq_add_device(&gpu->dev, &gpu_profile, GOVERNOR, NULL);
	if (IS_ERR(gpu_devfreq)) {
		ret = PTR_ERR(gpu_devfreq);
		goto remove_points;
	}
	ret = device_create_file(&gpu->dev, &dev_attr_load);
	if (ret)
		goto remove_devfreq;
	/* L4T offers the same device under this second name. */
	ret = sysfs_create_link(&platform_bus.kobj, &gpu->dev.kobj, "gpu.0");
	if (ret)
		goto remove_load;
	throttle = thermal_cooling_device_register(THROTTLE_DEVICE, NULL, &throttle_ops);
	if (IS_ERR(throttle)) {
		ret = PTR_ERR(throttle);
		goto remove_link;
	}
	return 0;

remove_link:
	sysfs_remove_link(&platform_bus.kobj, "gpu.0");
remove_load:
	device_remove_file(&gpu->dev, &dev_attr_load);
remove_devfreq:
	devfreq_remove_device(gpu_devfreq);
remove_points:
	dev_pm_opp_remove_all_dynamic(&gpu->dev);
remove_node:
	sysfs_remove_files(gpu_node, node_attrs);
	kobject_put(gpu_node);
remove_device:
	platform_device_unregister(gpu);
remove_governor:
	devfreq_remove_governor(&podgov);
remove_tree:
	proc_remove(tree);
	return ret;
}

static void __exit vjetson_exit(void)
{
	thermal_cooling_device_unregister(throttle);
	sysfs_remove_link(&platform_bus.kobj, "gpu.0");
	device_remove_file(&gpu->dev, &dev_attr_load);
	devfreq_remove_device(gpu_devfreq);
	dev_pm_opp_remove_all_dynamic(&gpu->dev);
	sysfs_remove_files(gpu_node, node_attrs);
	kobject_put(gpu_node);
	platform_device_unregister(gpu);
	devfreq_remove_governor(&podgov);
	proc_remove(tree);
}

module_init(vjetson_init);
module_exit(vjetson_exit);
MODULE_DESCRIPTION("Clocks and identity of a virtual Jetson Orin Nano");
MODULE_LICENSE("GPL");
